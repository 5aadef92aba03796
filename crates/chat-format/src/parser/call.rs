//! Parses a tool call, part by part. It emits events only once the text is certain to be a call.

use super::called::{Call, Context};
use super::envelope::EnvelopeReader;
use super::events::Events;
use super::input::{Flow, Input, LiteralReader, Seen};
use super::json_args::JsonArgs;
use super::nested::NestedReader;
use super::tagged::TaggedReader;
use super::value::ValueReader;
use crate::format::{CallSyntax, Pattern, SPECIAL, Step};

/// The maximum length of a name or id.
const LONGEST_NAME: usize = 256;

/// A call that is being parsed.
#[derive(Debug, Clone, Default)]
pub(super) struct CallReader {
    call: Call,
    /// The index of the current part.
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
    /// Returns true if the call was emitted.
    pub(super) fn is_started(&self) -> bool {
        self.call.is_started
    }

    /// Parses more of the call. When it returns `Done`, the call has started and can end.
    pub(super) fn step(&mut self, input: &mut Input, context: &Context, events: &mut Events) -> Flow {
        let Some(step) = context.syntax.call.get(self.place) else {
            return self.end(input, context, events);
        };
        let flow = self.part(step, input, context, events);
        if self.call.is_started && matches!(flow, Flow::Go | Flow::Done) {
            // Markers within a call are not text, whatever follows them. A call that only waits may still become text
            // if it is truncated.
            input.commit();
        }
        match flow {
            Flow::Fail(_) if self.is_left_out(input, context) => Flow::Go,
            Flow::Done => {
                if let PartReader::Tagged(tagged) = &self.part
                    && tagged.has_arguments()
                {
                    // Close the object together with the call, since a call without its end is incomplete.
                    self.call.hold(b"}");
                }
                self.place += 1;
                self.part = PartReader::New;
                Flow::Go
            }
            flow => flow,
        }
    }

    /// Skips parts that some models omit: an id with the marker before it, or the marker before an object.
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
            _ => Flow::Fail("unexpected text in the call"),
        }
    }

    /// Begins a part. Returns the flow if the part is decided immediately.
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
                Some(_) => return Some(Flow::Fail("missing arguments")),
            },
        };
        None
    }

    /// Parses a name or an id.
    fn word(&mut self, step: &Step, input: &mut Input, context: &Context) -> Flow {
        if input.skip_space().is_none() {
            return Flow::Wait;
        }
        let rest = input.rest();
        let length = rest.iter().take_while(|byte| is_name(**byte)).count();
        if length == 0 || length > LONGEST_NAME {
            return Flow::Fail("missing tool name");
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
            // A name without arguments is a call only if the section ends after it.
            input.skip_space();
            match input.sees(close) {
                Seen::Yes => {}
                Seen::Maybe => return Flow::Wait,
                Seen::No => return Flow::Fail("missing arguments"),
            }
        }
        self.call.start_whole(input, events);
        Flow::Done
    }
}

/// Returns the first pattern after a part, if a literal follows it.
fn next_pattern(syntax: &CallSyntax, place: usize) -> Option<&Pattern> {
    match syntax.call.get(place + 1) {
        Some(Step::Text(literal)) => literal.first(),
        _ => None,
    }
}

fn is_name(byte: u8) -> bool {
    byte > b' ' && byte != SPECIAL && !b"<>{}[]()\"'=,;".contains(&byte)
}

/// Returns the name in `functions.NAME:INDEX`. Models may omit the namespace or the index.
fn name_in_id(id: &str) -> &str {
    let name = id.strip_prefix("functions.").unwrap_or(id);
    match name.rsplit_once(':') {
        Some((name, index)) if !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

/// Returns the name of a declared tool. Models may add a namespace (`functions.add`) or repeat the name (`add.add`).
fn known_name(word: String, context: &Context) -> String {
    let is_known = |name: &&str| context.tools.get(name).is_some();
    if is_known(&word.as_str()) {
        return word;
    }
    let parts = word.split_once('.').map(|(before, after)| [after, before]);
    parts.into_iter().flatten().find(is_known).map_or(word.clone(), str::to_owned)
}
