//! Parses arguments that are a JSON object, or a string that contains one.

use serde_json::{Map, Value};

use super::called::Call;
use super::events::Events;
use super::input::{Flow, Input};
use super::value::ValueReader;
use crate::format::SPECIAL;

/// Arguments that are being parsed.
#[derive(Debug, Clone)]
pub(super) struct JsonArgs {
    value: ValueReader,
    stage: Stage,
}

#[derive(Debug, Clone)]
enum Stage {
    New,
    /// An object, which is emitted as it arrives.
    Object,
    /// A string or null, which is only usable at its end.
    Held(Vec<u8>),
}

impl JsonArgs {
    pub(super) fn new() -> Self {
        Self { value: ValueReader::new(), stage: Stage::New }
    }

    /// Returns true if nothing was read.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.stage, Stage::New)
    }

    pub(super) fn step(&mut self, input: &mut Input, call: &mut Call, events: &mut Events) -> Flow {
        match &mut self.stage {
            Stage::New => match input.skip_space() {
                None => Flow::Wait,
                Some(b'{') => self.begin(Stage::Object),
                Some(b'"' | b'\'' | b'n' | b'N') => self.begin(Stage::Held(Vec::new())),
                // There are no arguments. The following text decides if the call ends here.
                Some(b'<' | SPECIAL) => Flow::Done,
                Some(_) => Flow::Fail("arguments are not a JSON object"),
            },
            Stage::Object => {
                let mut out = Vec::new();
                let flow = self.value.read(input, &mut out);
                call.args(&out, input, events);
                flow
            }
            Stage::Held(held) => match self.value.read(input, held) {
                Flow::Done => match object_of(held) {
                    Some(text) => {
                        call.args(text.as_bytes(), input, events);
                        Flow::Done
                    }
                    None => Flow::Fail("arguments are not a JSON object"),
                },
                flow => flow,
            },
        }
    }

    fn begin(&mut self, stage: Stage) -> Flow {
        self.stage = stage;
        Flow::Go
    }
}

/// Returns the object in a string. Null is an empty object.
fn object_of(json: &[u8]) -> Option<String> {
    match serde_json::from_slice(json).ok()? {
        Value::Null => Some("{}".to_owned()),
        Value::String(text) if text.trim().is_empty() => Some("{}".to_owned()),
        Value::String(text) => serde_json::from_str::<Map<String, Value>>(&text).ok().map(|_| text),
        _ => None,
    }
}
