//! Reads one call of a tool, part by part. Nothing of it is an event before it is certain that it is a call.

use super::called::{Call, Context};
use super::envelope::EnvelopeReader;
use super::events::Events;
use super::input::{Flow, Input, LiteralReader, Seen};
use super::json_args::JsonArgs;
use super::nested::NestedReader;
use super::tagged::TaggedReader;
use super::value::ValueReader;
use crate::format::{CallSyntax, Pattern, SPECIAL, Step};

/// No name or id is longer.
const LONGEST_NAME: usize = 256;

/// A call that is being read.
#[derive(Debug, Clone, Default)]
pub(super) struct CallReader {
    call: Call,
    /// The part that is being read.
    place: usize,
    part: PartReader,
}

#[derive(Debug, Clone, Default)]
enum PartReader {
    #[default]
    New,
    Literal(LiteralReader),
    Json(JsonArgs),
    Value(Box<ValueReader>),
    Tagged(Box<TaggedReader>),
    Nested(NestedReader),
    Envelope(Box<EnvelopeReader>),
}

impl CallReader {
    /// Whether the call is an event.
    pub(super) fn is_started(&self) -> bool {
        self.call.is_started
    }

    /// Reads more of the call. When it is done it has begun and may end.
    pub(super) fn step(&mut self, input: &mut Input, context: &Context, events: &mut Events) -> Flow {
        let Some(step) = context.syntax.call.get(self.place) else {
            return self.end(input, context, events);
        };
        let flow = self.part(step, input, context, events);
        if self.call.is_started && matches!(flow, Flow::Go | Flow::Done) {
            // Markers within a call are no text, whatever follows them. What only waits may still be text, wherever it is cut.
            input.commit();
        }
        match flow {
            Flow::Fail(_) if self.is_left_out(input, context) => Flow::Go,
            Flow::Done => {
                if let PartReader::Tagged(tagged) = &self.part
                    && tagged.has_arguments()
                {
                    // Closed with the call: a call without its end is no whole call.
                    self.call.hold(b"}");
                }
                self.place += 1;
                self.part = PartReader::New;
                Flow::Go
            }
            flow => flow,
        }
    }

    /// Steps over parts that some models leave out: an id with the marker before it, the marker before an object.
    fn is_left_out(&mut self, input: &Input, context: &Context) -> bool {
        let call = &context.syntax.call;
        let is_unread = matches!(&self.part, PartReader::Literal(reader) if reader.is_new());
        if !is_unread || self.call.name.is_none() {
            return false;
        }
        let skipped = match call.get(self.place + 1) {
            Some(Step::Id) => 2,
            Some(Step::Json) if input.peek() == Some(b'{') => 1,
            _ => return false,
        };
        self.place += skipped;
        self.part = PartReader::New;
        true
    }

    fn part(&mut self, step: &Step, input: &mut Input, context: &Context, events: &mut Events) -> Flow {
        if let PartReader::New = self.part
            && let Some(flow) = self.begin(step, input, context)
        {
            return flow;
        }
        let (call, next) = (&mut self.call, next_pattern(context.syntax, self.place));
        match (&mut self.part, step) {
            (PartReader::Literal(reader), Step::Text(literal)) => reader.step(input, literal),
            (PartReader::Json(reader), _) => reader.step(input, call, events),
            (PartReader::Value(reader), _) => {
                let mut out = Vec::new();
                let flow = reader.read(input, &mut out);
                call.args(&out, input, events);
                flow
            }
            (PartReader::Tagged(reader), Step::Tagged(syntax)) => {
                reader.step(syntax, input, context.tools, call, events)
            }
            (PartReader::Nested(reader), Step::Nested { prefix }) => {
                reader.step(prefix, next, input, context.tools, call, events)
            }
            (PartReader::Envelope(reader), Step::Envelope(envelope)) => {
                reader.step(envelope, input, context, call, events)
            }
            _ => Flow::Fail("a call has another form"),
        }
    }

    /// Begins a part; what is decided at once has a flow of its own.
    fn begin(&mut self, step: &Step, input: &mut Input, context: &Context) -> Option<Flow> {
        self.part = match step {
            Step::Text(literal) if literal.is_empty() => return Some(Flow::Done),
            Step::Text(_) => PartReader::Literal(LiteralReader::default()),
            Step::Name | Step::NameInId | Step::Id => return Some(self.word(step, input, context)),
            Step::Tagged(_) => PartReader::Tagged(Box::default()),
            Step::Nested { .. } => PartReader::Nested(NestedReader::default()),
            Step::Envelope(_) => PartReader::Envelope(Box::default()),
            Step::Json => PartReader::Json(JsonArgs::new()),
            Step::Python => {
                self.call.hold(b"{");
                PartReader::Value(Box::new(ValueReader::arguments()))
            }
            Step::Bare { quote } => match input.skip_space() {
                None => return Some(Flow::Wait),
                Some(b'{') => PartReader::Value(Box::new(ValueReader::quoted(quote.clone()))),
                Some(_) => return Some(Flow::Fail("a call has no arguments")),
            },
        };
        None
    }

    /// Reads a name or an id.
    fn word(&mut self, step: &Step, input: &mut Input, context: &Context) -> Flow {
        if input.skip_space().is_none() {
            return Flow::Wait;
        }
        let rest = input.rest();
        let length = rest.iter().take_while(|byte| is_name(**byte)).count();
        if length == 0 || length > LONGEST_NAME {
            return Flow::Fail("a call has no name");
        }
        if length == rest.len() && !input.is_ended {
            return Flow::Wait;
        }
        let word = String::from_utf8_lossy(&rest[..length]).into_owned();
        input.advance(length);
        match step {
            Step::Id => self.call.id = Some(word),
            Step::NameInId => {
                self.call.name = Some(name_in_id(&word).to_owned());
                self.call.id = Some(word);
            }
            _ => self.call.name = Some(known_name(word, context)),
        }
        Flow::Done
    }

    fn end(&mut self, input: &mut Input, context: &Context, events: &mut Events) -> Flow {
        let is_certain = self.call.is_started || self.call.has_arguments();
        if !is_certain
            && let Some(close) = context.syntax.section.as_ref().and_then(|(_, close)| close.first())
        {
            // A name alone is a call only if the section ends behind it.
            input.skip_space();
            match input.sees(close) {
                Seen::Yes => {}
                Seen::Maybe => return Flow::Wait,
                Seen::No => return Flow::Fail("a call has no arguments"),
            }
        }
        self.call.start_whole(input, events);
        Flow::Done
    }
}

/// The first pattern after a part, if a literal follows it.
fn next_pattern(syntax: &CallSyntax, place: usize) -> Option<&Pattern> {
    match syntax.call.get(place + 1) {
        Some(Step::Text(literal)) => literal.first(),
        _ => None,
    }
}

fn is_name(byte: u8) -> bool {
    byte > b' ' && byte != SPECIAL && !b"<>{}[]()\"'=,;".contains(&byte)
}

/// The name in `functions.NAME:INDEX`, of which models leave out parts.
fn name_in_id(id: &str) -> &str {
    let name = id.strip_prefix("functions.").unwrap_or(id);
    match name.rsplit_once(':') {
        Some((name, index)) if !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

/// Returns the name of a declared tool. Models write a namespace before it (`functions.add`) or repeat it (`add.add`).
fn known_name(word: String, context: &Context) -> String {
    let is_known = |name: &&str| context.tools.get(name).is_some();
    if is_known(&word.as_str()) {
        return word;
    }
    let parts = word.split_once('.').map(|(before, after)| [after, before]);
    parts.into_iter().flatten().find(is_known).map_or(word.clone(), str::to_owned)
}
