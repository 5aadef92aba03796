//! Holds back calls that begin inside an open thought. They are calls if only markers, whitespace and other calls
//! follow. If other text follows, the model only considered a call, and the calls are part of the thought.

use super::called::Context;
use super::events::Events;
use super::input::{Flow, Input, Seen};
use super::marks::{Mark, Marks};
use super::section::SectionReader;

/// Possible calls in a thought.
#[derive(Debug, Clone)]
pub(super) struct DeferredCalls {
    /// The bytes of the calls, up to the end of the thought.
    input: Input,
    /// The number of bytes copied to `input`.
    copied: usize,
    /// The section that is being parsed.
    section: Option<SectionReader>,
    events: Events,
    is_closed: bool,
}

/// The outcome of reading.
pub(super) enum Verdict {
    /// More text is needed.
    Wait,
    /// The text contains only calls.
    Calls(Events),
    /// The text that was read and not committed is part of the thought.
    Thought,
}

impl DeferredCalls {
    /// Returns a reader that starts at the marker of a section or of a call.
    pub(super) fn new(has_section: bool) -> Self {
        let section = Some(SectionReader::new(has_section));
        Self { input: Input::default(), copied: 0, section, events: Events::default(), is_closed: false }
    }

    /// Reads more of the thought from `outer`, which commits nothing meanwhile.
    pub(super) fn read(&mut self, outer: &mut Input, marks: &Marks, context: &Context) -> Verdict {
        if !self.is_closed {
            let (length, hit) = outer.find(&marks.close().into_iter().collect::<Vec<_>>());
            self.input.push(&outer.rest()[..length]);
            self.copied += length;
            outer.advance(length);
            self.is_closed = hit.is_some();
        }
        let after = if self.is_closed { skip(outer, marks) } else { Seen::No };
        let is_end = outer.is_ended && outer.peek().is_none();
        self.input.is_ended = self.is_closed || is_end;
        self.input.is_cut = outer.is_cut && !self.is_closed;
        let is_whole = match self.calls(marks, context) {
            Flow::Done => true,
            Flow::Wait => false,
            Flow::Go | Flow::Fail(_) => return self.thought(outer),
        };
        match after {
            Seen::Yes => self.thought(outer),
            _ if is_end && is_whole => Verdict::Calls(std::mem::take(&mut self.events)),
            _ => Verdict::Wait,
        }
    }

    /// Parses calls and markers that end a turn. Returns `Done` if there was nothing else.
    fn calls(&mut self, marks: &Marks, context: &Context) -> Flow {
        loop {
            let Some(section) = &mut self.section else {
                match self.next(marks) {
                    Flow::Go => continue,
                    flow => return flow,
                }
            };
            match section.step(&mut self.input, context, &mut self.events) {
                Flow::Go => {}
                Flow::Done => self.section = None,
                Flow::Wait if self.input.is_ended => return Flow::Fail("the call is not closed"),
                flow => return flow,
            }
        }
    }

    /// Reads whitespace and markers between two sections.
    fn next(&mut self, marks: &Marks) -> Flow {
        if self.input.skip_space().is_none() {
            return Flow::Done;
        }
        let openers: Vec<_> = marks.openers().collect();
        if let Some((_, mark)) = openers.iter().find(|(open, _)| self.input.sees(open) == Seen::Yes) {
            self.section = Some(SectionReader::new(*mark == Mark::Section));
            return Flow::Go;
        }
        let openers = openers.into_iter().map(|(open, _)| open);
        match self.input.sees_any(openers.chain(&marks.format.ends)) {
            (Seen::Yes, length) => {
                self.input.advance(length);
                Flow::Go
            }
            (Seen::Maybe, _) => Flow::Wait,
            (Seen::No, _) => Flow::Fail("text follows the call"),
        }
    }

    /// Puts back the text after the calls.
    fn thought(&self, outer: &mut Input) -> Verdict {
        let after = outer.uncommitted() - self.copied;
        outer.put_back(after + self.input.rest().len());
        Verdict::Thought
    }
}

/// Skips whitespace, ends of thoughts and ends of turns. Returns `Yes` if anything else follows.
fn skip(input: &mut Input, marks: &Marks) -> Seen {
    while input.skip_space().is_some() {
        match input.sees_any(marks.closing()) {
            (Seen::Yes, length) => input.advance(length),
            (Seen::Maybe, _) => return Seen::Maybe,
            (Seen::No, _) => return Seen::Yes,
        }
    }
    Seen::No
}
