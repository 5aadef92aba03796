//! Parses arguments with a tag for each. The tag, or else the tool's schema, determines if a value is text or JSON.

use serde_json::Value;

use super::called::Call;
use super::escape::escape;
use super::events::Events;
use super::input::{Flow, Input, LiteralReader, Seen, text};
use super::value::ValueReader;
use crate::format::{KindOfValue, Literal, Pattern, TaggedSyntax};
use crate::json_type::JsonTypes;
use crate::tool::Tools;

/// The maximum length of an argument name.
const LONGEST_KEY: usize = 1024;
const CDATA: &[u8] = b"<![CDATA[";

/// Arguments that are being parsed.
#[derive(Debug, Clone, Default)]
pub(super) struct TaggedReader {
    stage: Stage,
    count: usize,
    key: Vec<u8>,
    types: Option<JsonTypes>,
    value: TagValue,
}

#[derive(Debug, Clone, Default)]
enum Stage {
    /// Before an argument or the end.
    #[default]
    Next,
    Open(LiteralReader),
    Key,
    KeyEnd(LiteralReader),
    Kind,
    KindEnd(LiteralReader),
    ValueStart(LiteralReader),
    Value,
    ValueEnd(LiteralReader),
}

/// A partially parsed value.
#[derive(Debug, Clone, Default)]
struct TagValue {
    /// Bytes that wait for the end: all of a value that may be JSON, or the last line end of a text.
    held: Vec<u8>,
    is_text: bool,
    has_begun: bool,
    in_cdata: bool,
}

impl TaggedReader {
    /// Returns true if there were any arguments.
    pub(super) fn has_arguments(&self) -> bool {
        self.count > 0
    }

    pub(super) fn step(
        &mut self,
        syntax: &TaggedSyntax,
        input: &mut Input,
        tools: &Tools,
        call: &mut Call,
        events: &mut Events,
    ) -> Flow {
        match &mut self.stage {
            Stage::Next => self.next(&syntax.key.0, input),
            Stage::Open(reader) => reader.step(input, &syntax.key.0).then(|| self.go(Stage::Key)),
            Stage::Key => {
                let flow = until(&mut self.key, &syntax.key.1, input);
                flow.then(|| self.go(Stage::KeyEnd(LiteralReader::default())))
            }
            Stage::KeyEnd(reader) => {
                reader.step(input, &syntax.key.1).then(|| self.begin(syntax, input, tools, call, events))
            }
            Stage::Kind => match &syntax.kind {
                Some((_, after)) => {
                    let flow = until(&mut self.value.held, after, input);
                    flow.then(|| self.go(Stage::KindEnd(LiteralReader::default())))
                }
                None => self.go(Stage::ValueStart(LiteralReader::default())),
            },
            Stage::KindEnd(reader) => {
                let Some((kind, after)) = &syntax.kind else { return Flow::Fail("unexpected text") };
                reader.step(input, after).then(|| self.kind(*kind))
            }
            Stage::ValueStart(reader) => {
                reader.step(input, &syntax.value.0).then(|| self.begin_value(call, input, events))
            }
            Stage::Value => self.value(syntax, input, call, events),
            Stage::ValueEnd(reader) => reader.step(input, &syntax.value.1).then(|| self.go(Stage::Next)),
        }
    }

    fn go(&mut self, stage: Stage) -> Flow {
        self.stage = stage;
        Flow::Go
    }

    fn next(&mut self, open: &Literal, input: &mut Input) -> Flow {
        if input.skip_space().is_none() && !input.is_ended {
            return Flow::Wait;
        }
        match open.first().map_or(Seen::No, |first| input.sees(first)) {
            Seen::Yes => {
                (self.key, self.value) = (Vec::new(), TagValue::default());
                self.go(Stage::Open(LiteralReader::default()))
            }
            Seen::Maybe => Flow::Wait,
            // A truncated call keeps its arguments open.
            Seen::No if input.is_cut && input.peek().is_none() => Flow::Wait,
            Seen::No => Flow::Done,
        }
    }

    /// Begins an argument, now that its name is known.
    fn begin(
        &mut self,
        syntax: &TaggedSyntax,
        input: &mut Input,
        tools: &Tools,
        call: &mut Call,
        events: &mut Events,
    ) -> Flow {
        let key = text(self.key.trim_ascii());
        self.types = Some(tools.types_of(call.name.as_deref().unwrap_or_default(), &key));
        let mut start = vec![if self.count == 0 { b'{' } else { b',' }];
        start.extend(serde_json::to_vec(&key).unwrap_or_default());
        start.push(b':');
        self.count += 1;
        call.args(&start, input, events);
        self.value.is_text = self.types == Some(JsonTypes::TEXT);
        let start = Stage::ValueStart(LiteralReader::default());
        self.go(if syntax.kind.is_some() { Stage::Kind } else { start })
    }

    /// Sets the type that the tag gives.
    fn kind(&mut self, kind: KindOfValue) -> Flow {
        let said = std::mem::take(&mut self.value.held);
        self.value.is_text = match (kind, said.trim_ascii()) {
            (KindOfValue::IsText, said) => said != b"false",
            (KindOfValue::TypeName, said) => said == b"string",
        };
        self.types = None;
        self.go(Stage::ValueStart(LiteralReader::default()))
    }

    fn begin_value(&mut self, call: &mut Call, input: &mut Input, events: &mut Events) -> Flow {
        if self.value.is_text {
            call.args(b"\"", input, events);
        }
        self.go(Stage::Value)
    }

    fn value(
        &mut self,
        syntax: &TaggedSyntax,
        input: &mut Input,
        call: &mut Call,
        events: &mut Events,
    ) -> Flow {
        if !self.value.has_begun {
            match self.value.begin(syntax, input) {
                Flow::Done => {}
                flow => return flow,
            }
        }
        let cdata_end: Pattern = (*b"]]>").into();
        let Some(close) = (if self.value.in_cdata { Some(&cdata_end) } else { syntax.value.1.first() })
        else {
            return Flow::Fail("unexpected text in the call");
        };
        let (length, hit) = input.find(&[close]);
        self.value.held.extend_from_slice(&input.rest()[..length]);
        input.advance(length);
        if hit.is_none() {
            if self.value.is_text {
                call.args(&self.value.certain(syntax.has_lines), input, events);
            }
            input.commit();
            return Flow::Wait;
        }
        if self.value.in_cdata {
            input.advance(close.len());
        }
        self.end_value(syntax, call, input, events)
    }

    fn end_value(
        &mut self,
        syntax: &TaggedSyntax,
        call: &mut Call,
        input: &mut Input,
        events: &mut Events,
    ) -> Flow {
        let mut held = std::mem::take(&mut self.value.held);
        if syntax.has_lines && !self.value.in_cdata && held.last() == Some(&b'\n') {
            held.pop();
        }
        let mut out = Vec::new();
        if self.value.is_text {
            escape(&text(&held), &mut out);
            out.push(b'"');
        } else {
            out = json_of(&text(&held), self.types);
        }
        call.args(&out, input, events);
        self.go(Stage::ValueEnd(LiteralReader::default()))
    }
}

impl TagValue {
    /// Reads the text before the value.
    fn begin(&mut self, syntax: &TaggedSyntax, input: &mut Input) -> Flow {
        if syntax.has_cdata {
            match input.sees(CDATA) {
                Seen::Yes => {
                    input.advance(CDATA.len());
                    self.in_cdata = true;
                }
                Seen::Maybe => return Flow::Wait,
                Seen::No => {}
            }
        }
        if syntax.has_lines {
            match input.peek() {
                None => return Flow::Wait,
                Some(b'\n') => input.advance(1),
                Some(_) => {}
            }
        }
        self.has_begun = true;
        Flow::Done
    }

    /// Returns the bytes that are certainly part of a text. A line end may belong to the tag after it.
    fn certain(&mut self, has_lines: bool) -> Vec<u8> {
        let is_kept = has_lines && self.held.last() == Some(&b'\n');
        let end = self.held.len() - usize::from(is_kept);
        let mut more = Vec::new();
        escape(&text(&self.held[..end]), &mut more);
        self.held.drain(..end);
        more
    }
}

/// Reads up to the first pattern of a literal.
fn until(held: &mut Vec<u8>, literal: &Literal, input: &mut Input) -> Flow {
    let Some(pattern) = literal.first() else { return Flow::Done };
    let (length, hit) = input.find(&[pattern]);
    held.extend_from_slice(&input.rest()[..length]);
    input.advance(length);
    // This also applies if the end has arrived, so that results do not depend on chunk boundaries.
    if held.len() > LONGEST_KEY {
        return Flow::Fail("argument name or type too long");
    }
    if hit.is_some() { Flow::Done } else { Flow::Wait }
}

/// Converts a value to JSON. It is JSON if it parses as JSON and its types allow that, else a string. Without types,
/// everything that parses as JSON is JSON.
pub(super) fn json_of(written: &str, types: Option<JsonTypes>) -> Vec<u8> {
    let as_text = || serde_json::to_vec(written).unwrap_or_default();
    let types = types.unwrap_or(JsonTypes::NONE);
    let Some(json) = lenient(written.trim()) else { return as_text() };
    let Ok(value) = serde_json::from_slice::<Value>(&json) else { return as_text() };
    let of_value = JsonTypes::of(&value);
    let is_json = if types == JsonTypes::NONE {
        of_value != JsonTypes::TEXT && (of_value.has(JsonTypes::OTHER) || written.trim().as_bytes() == json)
    } else if types.has(JsonTypes::TEXT) {
        of_value != JsonTypes::TEXT && types.has(of_value)
    } else {
        true
    };
    if is_json { json } else { as_text() }
}

/// Converts a complete JSON or Python value to JSON.
fn lenient(written: &str) -> Option<Vec<u8>> {
    let (mut input, mut out) = (Input::default(), Vec::new());
    input.push(written.as_bytes());
    input.is_ended = true;
    let flow = ValueReader::new().read(&mut input, &mut out);
    (flow == Flow::Done && input.rest().is_empty()).then_some(out)
}
