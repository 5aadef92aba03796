//! Splits what a model writes into thoughts and answer, as it comes. Invariants: the events do not depend on where the
//! text is cut into tokens; no character is lost but tags, headers and the white space beside tags; it never fails.

mod channels;
mod events;
mod tags;

use std::collections::VecDeque;

use super::format::{Kind, OutputFormat};
use crate::engine::{Finished, TokenOutput};
use channels::ChannelParser;
use events::Events;
pub use events::{ChatEvent, ToolCallDelta};
use tags::TagParser;

/// A parser of one answer.
#[derive(Debug, Clone)]
pub struct OutputParser {
    format: OutputFormat,
    machine: Machine,
    /// Marker tokens that wait for the text before them to be released, with the bytes of that text.
    waiting: VecDeque<(usize, u32)>,
    /// Bytes of text that the tokens have made, and of these the ones that were released.
    made: usize,
    released: usize,
}

#[derive(Debug, Clone)]
enum Machine {
    Plain,
    Tags(TagParser),
    Channels(ChannelParser),
}

impl OutputParser {
    /// A parser of the answer to this prompt, whose end may have opened a thought.
    pub fn new(format: &OutputFormat, prompt: &str) -> Self {
        let machine = match format.kind() {
            Kind::Plain => Machine::Plain,
            Kind::Tags(tags) => Machine::Tags(TagParser::new(tags, prompt)),
            Kind::Channels(_) => Machine::Channels(ChannelParser::new(prompt)),
        };
        Self { format: format.clone(), machine, waiting: VecDeque::new(), made: 0, released: 0 }
    }

    /// A parser for which all text is the answer.
    pub fn plain() -> Self {
        Self::new(&OutputFormat::plain(), "")
    }

    /// Takes the next token of a generation; gives what is certain.
    ///
    /// Special tokens have no text. Text that is held back because it may become a stop string is released later, and a
    /// marker waits for the text before it.
    pub fn token(&mut self, token: &TokenOutput) -> Vec<ChatEvent> {
        if self.format.is_marker(token.id) {
            self.waiting.push_back((self.made, token.id));
        }
        self.made += token.text.len();
        let mut events = Events::default();
        self.release(&token.delta, &mut events);
        events.into_list()
    }

    /// Takes the end of the generation: text that was held back is what it looks like.
    pub fn finish(&mut self, finished: &Finished) -> Vec<ChatEvent> {
        let mut events = Events::default();
        self.release(&finished.delta, &mut events);
        match (&mut self.machine, self.format.kind()) {
            (Machine::Tags(parser), Kind::Tags(tags)) => parser.finish(tags, &mut events),
            (Machine::Channels(parser), _) => parser.finish(&mut events),
            _ => {}
        }
        events.into_list()
    }

    fn release(&mut self, delta: &str, events: &mut Events) {
        let mut rest = delta;
        while let Some(&(place, token)) = self.waiting.front() {
            let Some((before, after)) = rest.split_at_checked(place.saturating_sub(self.released)) else {
                break;
            };
            self.text(before, events);
            self.marker(token, events);
            self.released += before.len();
            self.waiting.pop_front();
            rest = after;
        }
        self.text(rest, events);
        self.released += rest.len();
    }

    fn text(&mut self, text: &str, events: &mut Events) {
        if text.is_empty() {
            return;
        }
        match (&mut self.machine, self.format.kind()) {
            (Machine::Tags(parser), Kind::Tags(tags)) => parser.text(text, tags, events),
            (Machine::Channels(parser), _) => parser.text(text, events),
            _ => events.text(text),
        }
    }

    fn marker(&mut self, token: u32, events: &mut Events) {
        match (&mut self.machine, self.format.kind()) {
            (Machine::Tags(parser), Kind::Tags(tags)) => parser.marker(token, tags, events),
            (Machine::Channels(parser), Kind::Channels(channels)) => parser.marker(token, channels, events),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
