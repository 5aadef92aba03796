//! Parses a call that is one object with name and arguments, with its keys in any order.

use serde_json::Value;

use super::called::{Call, Context};
use super::events::Events;
use super::input::{Flow, Input};
use super::json_args::JsonArgs;
use super::value::ValueReader;
use crate::format::Envelope;

/// The keys that families and their models use.
const NAMES: [&str; 3] = ["name", "tool_name", "function"];
const ARGUMENTS: [&str; 3] = ["arguments", "parameters", "args"];
const IDS: [&str; 2] = ["id", "tool_call_id"];

/// An object that is being parsed.
#[derive(Debug, Clone, Default)]
pub(super) struct EnvelopeReader {
    stage: Stage,
    /// The number of open objects. Some models nest name and arguments in a second object.
    depth: usize,
    has_arguments: bool,
}

#[derive(Debug, Clone, Default)]
enum Stage {
    #[default]
    Open,
    /// Before a key, a comma, or the end.
    Next,
    Key {
        reader: ValueReader,
        text: Vec<u8>,
    },
    Colon(Kind),
    Arguments(JsonArgs),
    Value {
        reader: ValueReader,
        text: Vec<u8>,
        kind: Kind,
    },
}

/// The meaning of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Name,
    Arguments,
    Id,
    Other,
}

impl EnvelopeReader {
    pub(super) fn step(
        &mut self,
        envelope: &Envelope,
        input: &mut Input,
        context: &Context,
        call: &mut Call,
        events: &mut Events,
    ) -> Flow {
        match &mut self.stage {
            Stage::Open => match input.skip_space() {
                None => Flow::Wait,
                Some(b'{') => self.open(input),
                Some(_) => Flow::Fail("the call is not an object"),
            },
            Stage::Next => self.next(input, call, events),
            Stage::Key { reader, text } => match reader.read(input, text) {
                Flow::Done => {
                    let key = serde_json::from_slice(text).unwrap_or_default();
                    self.key(key, envelope, context, call)
                }
                flow => flow,
            },
            Stage::Colon(kind) => match input.skip_space() {
                None => Flow::Wait,
                Some(b':') => {
                    let kind = *kind;
                    input.advance(1);
                    self.stage = match kind {
                        Kind::Arguments => Stage::Arguments(JsonArgs::new()),
                        kind => Stage::Value { reader: ValueReader::new(), text: Vec::new(), kind },
                    };
                    Flow::Go
                }
                Some(_) => Flow::Fail("missing value after a key"),
            },
            Stage::Arguments(reader) => match reader.step(input, call, events) {
                Flow::Done if reader.is_new() => Flow::Fail("missing arguments"),
                Flow::Done => {
                    self.has_arguments = true;
                    self.go(Stage::Next)
                }
                flow => flow,
            },
            Stage::Value { reader, text, kind } => {
                if reader.is_new() && *kind == Kind::Name && input.skip_space() == Some(b'{') {
                    return self.open(input);
                }
                match reader.read(input, text) {
                    Flow::Done => {
                        let (value, kind) = (serde_json::from_slice(text).unwrap_or_default(), *kind);
                        self.value(kind, value, input, context, call, events)
                    }
                    flow => flow,
                }
            }
        }
    }

    fn open(&mut self, input: &mut Input) -> Flow {
        input.advance(1);
        self.depth += 1;
        self.go(Stage::Next)
    }

    fn next(&mut self, input: &mut Input, call: &mut Call, events: &mut Events) -> Flow {
        match input.skip_space() {
            None => Flow::Wait,
            Some(b',') => {
                input.advance(1);
                Flow::Go
            }
            Some(b'}') => {
                if call.name.is_none() && self.depth == 1 {
                    return Flow::Fail("missing tool name");
                }
                input.advance(1);
                self.depth -= 1;
                if self.depth > 0 {
                    return Flow::Go;
                }
                if !self.has_arguments {
                    call.start_whole(input, events);
                }
                Flow::Done
            }
            Some(b'"' | b'\'') => self.go(Stage::Key { reader: ValueReader::new(), text: Vec::new() }),
            // The arguments are complete, and only the last brace is missing.
            Some(_) if self.has_arguments && call.is_started => Flow::Done,
            Some(_) => Flow::Fail("the call is not an object"),
        }
    }

    fn key(&mut self, key: String, envelope: &Envelope, context: &Context, call: &mut Call) -> Flow {
        let kind = match key.as_str() {
            _ if envelope.name.is_empty() && call.name.is_none() => {
                call.name = Some(key);
                Kind::Arguments
            }
            key if call.name.is_none() && NAMES.contains(&key) => Kind::Name,
            key if !self.has_arguments && ARGUMENTS.contains(&key) => Kind::Arguments,
            key if IDS.contains(&key) => Kind::Id,
            // An answer without a marker may be any object.
            key if context.syntax.family.only_first && key != "type" => {
                return Flow::Fail("the object is not a call");
            }
            _ => Kind::Other,
        };
        self.go(Stage::Colon(kind))
    }

    fn value(
        &mut self,
        kind: Kind,
        value: Value,
        input: &mut Input,
        context: &Context,
        call: &mut Call,
        events: &mut Events,
    ) -> Flow {
        match (kind, value) {
            (Kind::Name, Value::String(name)) => {
                if context.syntax.family.only_first && context.tools.get(&name).is_none() {
                    return Flow::Fail("unknown tool name");
                }
                call.name = Some(name);
                if self.has_arguments {
                    call.start(input, events);
                }
            }
            (Kind::Name, _) => return Flow::Fail("the tool name is not a string"),
            (Kind::Id, Value::String(id)) => call.id = Some(id),
            (Kind::Id, Value::Number(id)) => call.id = Some(id.to_string()),
            _ => {}
        }
        self.go(Stage::Next)
    }

    fn go(&mut self, stage: Stage) -> Flow {
        self.stage = stage;
        Flow::Go
    }
}
