//! Parses tool calls and the markers around them.

use super::call::CallReader;
use super::called::Context;
use super::events::Events;
use super::input::{Flow, Input, LiteralReader, Seen};
use crate::format::{CallSyntax, Literal};

/// Calls that are being parsed, beginning with their first marker.
#[derive(Debug, Clone)]
pub(super) struct SectionReader {
    stage: Stage,
    /// True if a section marker precedes the calls. Models may omit it.
    has_section: bool,
    /// The number of calls parsed so far.
    calls: usize,
}

#[derive(Debug, Clone)]
enum Stage {
    Open(LiteralReader),
    /// Before a call or the end.
    Between,
    Call(Box<CallReader>),
    Close(LiteralReader),
}

impl SectionReader {
    /// Returns a reader that starts at the marker of a section, or else of a call.
    pub(super) fn new(has_section: bool) -> Self {
        let stage =
            if has_section { Stage::Open(LiteralReader::default()) } else { Stage::Call(Box::default()) };
        Self { stage, has_section, calls: 0 }
    }

    /// Returns true if any call was emitted.
    pub(super) fn has_calls(&self) -> bool {
        self.calls > 0 || matches!(&self.stage, Stage::Call(call) if call.is_started())
    }

    /// Returns true if a call was emitted and has not ended.
    pub(super) fn is_in_call(&self) -> bool {
        matches!(&self.stage, Stage::Call(call) if call.is_started())
    }

    pub(super) fn step(&mut self, input: &mut Input, context: &Context, events: &mut Events) -> Flow {
        let (open, close) = literals(context.syntax);
        match &mut self.stage {
            Stage::Open(reader) => reader.step(input, open).then(|| self.go(Stage::Between)),
            Stage::Between => self.between(close, input, context),
            Stage::Call(reader) => match reader.step(input, context, events) {
                Flow::Done => {
                    events.call_end();
                    input.commit();
                    self.calls += 1;
                    self.go(Stage::Between)
                }
                Flow::Fail(reason) => {
                    if reader.is_started() {
                        events.call_end();
                    }
                    Flow::Fail(reason)
                }
                flow => flow,
            },
            Stage::Close(reader) => reader.step(input, close).then(|| {
                input.commit();
                Flow::Done
            }),
        }
    }

    fn between(&mut self, close: &Literal, input: &mut Input, context: &Context) -> Flow {
        let is_list = context.syntax.is_list;
        let next = loop {
            match input.skip_space() {
                // After a call, a bracket opens something else.
                Some(b'[') if is_list && self.calls == 0 => input.advance(1),
                Some(b',' | b']' | b';') if is_list => {
                    input.advance(1);
                    if self.calls > 0 {
                        input.commit();
                    }
                }
                next => break next,
            }
        };
        let Some(next) = next else {
            return match (input.is_ended, self.calls) {
                (false, _) => Flow::Wait,
                (true, 0) => Flow::Fail("the section has no calls"),
                (true, _) => Flow::Done,
            };
        };
        match close.first().map_or(Seen::No, |close| input.sees(close)) {
            Seen::Yes if self.calls == 0 => return Flow::Fail("the section has no calls"),
            Seen::Yes => return self.go(Stage::Close(LiteralReader::default())),
            Seen::Maybe => return Flow::Wait,
            Seen::No => {}
        }
        // Without its own end marker, a section ends where no other call begins.
        let is_open = self.has_section && !close.is_empty();
        if self.calls > 0 && !is_open && !(is_list && next == b'{') {
            // Whitespace before a text belongs to the text.
            input.put_back(input.uncommitted());
            return Flow::Done;
        }
        if self.calls > 0 {
            input.commit();
        }
        self.go(Stage::Call(Box::default()))
    }

    fn go(&mut self, stage: Stage) -> Flow {
        self.stage = stage;
        Flow::Go
    }
}

fn literals(syntax: &CallSyntax) -> (&Literal, &Literal) {
    static NONE: Literal = Vec::new();
    syntax.section.as_ref().map_or((&NONE, &NONE), |(open, close)| (open, close))
}
