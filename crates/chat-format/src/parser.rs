//! Splits the output of a model into thoughts, answer and tool calls, while it is generated. Invariants: events do not
//! depend on the tokenization of the text. No characters are lost except markers, headers and the whitespace around
//! them. Parsing never fails: invalid calls are text.

mod answer;
mod call;
mod called;
mod channel_call;
mod channels;
mod envelope;
mod escape;
mod events;
mod header;
mod held_calls;
mod input;
mod json_args;
mod margin;
mod marks;
mod nested;
mod section;
mod tagged;
mod value;

use std::collections::VecDeque;

use super::format::{CallFormat, Kind, OutputFormat, special_bytes};
use super::tool::Tools;
use answer::AnswerParser;
use channels::ChannelParser;
pub use events::ChatEvent;
use events::Events;

/// A parser for one answer.
#[derive(Debug, Clone)]
pub struct OutputParser {
    format: OutputFormat,
    machine: Machine,
    /// The special tokens of call formats.
    call_markers: Vec<u32>,
    /// Marker tokens that wait until the text before them is released, with the end of that text in bytes.
    waiting: VecDeque<(usize, u32)>,
    /// The number of bytes that tokens have produced, and how many of them were released.
    made: usize,
    released: usize,
    /// The number of tokens in thoughts and their markers.
    reasoning_tokens: usize,
    /// True if parsing stops after the first call.
    is_single: bool,
    has_called: bool,
}

#[derive(Debug, Clone)]
enum Machine {
    Answer(Box<AnswerParser>),
    Channels(Box<ChannelParser>),
}

impl OutputParser {
    /// Returns a parser of the answer to this prompt, which may end with an opened thought. Tool calls are not parsed
    /// and stay text.
    pub fn new(format: &OutputFormat, prompt: &str) -> Self {
        let machine = match format.kind() {
            Kind::Answer(format) => Machine::Answer(Box::new(AnswerParser::new(format, prompt))),
            Kind::Channels(_) => Machine::Channels(Box::new(ChannelParser::new(prompt))),
        };
        Self {
            format: format.clone(),
            machine,
            call_markers: Vec::new(),
            waiting: VecDeque::new(),
            made: 0,
            released: 0,
            reasoning_tokens: 0,
            is_single: false,
            has_called: false,
        }
    }

    /// Returns a parser for which all text is the answer.
    pub fn plain() -> Self {
        Self::new(&OutputFormat::plain(), "")
    }

    /// Also parses calls of these tools. The prompt may end with an opened call.
    #[must_use]
    pub fn with_calls(mut self, calls: &CallFormat, tools: Tools, prompt: &str) -> Self {
        self.call_markers.clone_from(&calls.syntax().specials);
        self.machine = match self.machine {
            Machine::Answer(parser) => Machine::Answer(Box::new(parser.with_calls(calls, tools, prompt))),
            Machine::Channels(parser) => Machine::Channels(Box::new(parser.with_calls(calls, tools))),
        };
        self
    }

    /// Only parses calls after their section marker, if the format has one, since other calls were not constrained.
    #[must_use]
    pub fn requiring_section_markers(mut self) -> Self {
        if let Machine::Answer(parser) = &mut self.machine {
            parser.expect_sections();
        }
        self
    }

    /// Parses at most one call, and drops the text after it.
    #[must_use]
    pub fn with_single_call(self) -> Self {
        Self { is_single: true, ..self }
    }

    /// Parses the continuation of an answer that begins in the prompt.
    #[must_use]
    pub fn continuing(mut self) -> Self {
        if let Machine::Answer(parser) = &mut self.machine {
            parser.continue_answer();
        }
        self
    }

    /// Returns true if all further text is ignored.
    pub fn has_ended(&self) -> bool {
        self.is_single && self.has_called
    }

    /// Returns the number of tokens in thoughts so far, including their markers. While text waits for stop strings, a
    /// few tokens are counted late.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Parses the next token: its id, its text, and the text that is released with it.
    ///
    /// Special tokens have no text. Text that may become a stop string is held back and released later, and a marker
    /// waits for the text before it.
    pub fn push(&mut self, token: u32, text: &str, delta: &str) -> Vec<ChatEvent> {
        let was_thinking = self.is_thinking();
        if self.format.is_marker(token) || self.call_markers.contains(&token) {
            self.waiting.push_back((self.made, token));
        }
        self.made += text.len();
        let mut events = Events::default();
        self.release(delta, &mut events);
        self.reasoning_tokens += usize::from(was_thinking || self.is_thinking());
        self.checked(events)
    }

    /// Ends the output with the text that was held back, which is final now. `is_cut` is true unless the model ended
    /// the output itself.
    pub fn end(&mut self, delta: &str, is_cut: bool) -> Vec<ChatEvent> {
        let mut events = Events::default();
        self.release(delta, &mut events);
        let mut all = self.checked(events);
        let has_called = self.has_called;
        let mut events = Events::default();
        self.close(is_cut, &mut events);
        all.extend(self.checked(events));
        // A call that is only closed by the end of the output does not count as the end of the answer.
        self.has_called = has_called || self.has_called && !is_cut;
        all
    }

    /// Parses a complete output in which special tokens are spelled out.
    pub fn read(mut self, output: &str) -> Vec<ChatEvent> {
        let mut events = Events::default();
        self.feed(output.as_bytes(), &mut events);
        self.close(false, &mut events);
        self.checked(events)
    }

    /// Drops the events after the call that ends the answer.
    fn checked(&mut self, events: Events) -> Vec<ChatEvent> {
        let mut events = events.into_list();
        if self.has_ended() {
            return Vec::new();
        }
        if let Some(end) = events.iter().position(|event| *event == ChatEvent::CallEnd) {
            self.has_called = true;
            if self.is_single {
                events.truncate(end + 1);
            }
        }
        events
    }

    fn is_thinking(&self) -> bool {
        match &self.machine {
            Machine::Answer(parser) => parser.is_thinking(),
            Machine::Channels(parser) => parser.is_thinking(),
        }
    }

    /// Returns true if the newest text is a thought. The header of a thought does not count.
    pub(super) fn is_in_thought(&self) -> bool {
        match &self.machine {
            Machine::Answer(parser) => parser.is_thinking(),
            Machine::Channels(parser) => parser.is_in_thought(),
        }
    }

    fn release(&mut self, delta: &str, events: &mut Events) {
        let mut rest = delta;
        while let Some(&(place, token)) = self.waiting.front() {
            let Some((before, after)) = rest.split_at_checked(place.saturating_sub(self.released)) else {
                break;
            };
            self.feed(before.as_bytes(), events);
            self.feed(&special_bytes(token), events);
            self.released += before.len();
            self.waiting.pop_front();
            rest = after;
        }
        self.feed(rest.as_bytes(), events);
        self.released += rest.len();
    }

    fn feed(&mut self, bytes: &[u8], events: &mut Events) {
        if bytes.is_empty() {
            return;
        }
        match (&mut self.machine, self.format.kind()) {
            (Machine::Channels(parser), Kind::Channels(channels)) => parser.push(bytes, channels, events),
            (Machine::Answer(parser), Kind::Answer(format)) => parser.push(bytes, format, events),
            (Machine::Channels(_), Kind::Answer(_)) | (Machine::Answer(_), Kind::Channels(_)) => {}
        }
    }

    fn close(&mut self, is_cut: bool, events: &mut Events) {
        match (&mut self.machine, self.format.kind()) {
            (Machine::Channels(parser), Kind::Channels(channels)) => parser.finish(is_cut, channels, events),
            (Machine::Answer(parser), Kind::Answer(format)) => parser.finish(is_cut, format, events),
            (Machine::Channels(_), Kind::Answer(_)) | (Machine::Answer(_), Kind::Channels(_)) => {}
        }
    }
}

#[cfg(test)]
mod call_cases;
#[cfg(test)]
mod call_tests;
#[cfg(test)]
mod ending_tests;
#[cfg(test)]
mod tests;
