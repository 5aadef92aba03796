//! Splits what a model writes into thoughts and answer, as it comes. Invariants: the events do not depend on where the
//! text is cut into tokens; no character is lost but tags, headers and the white space beside tags; it never fails.

mod channels;
mod tags;

use std::collections::VecDeque;

use super::format::{Kind, OutputFormat};
use crate::engine::{Finished, TokenOutput};
use channels::ChannelParser;
use tags::TagParser;

/// A piece of what a model writes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatEvent {
    /// More of the answer.
    Text(String),
    /// More of a thought.
    Reasoning(String),
    /// More of a call of a tool. No format of calls is read yet, so no parser gives this: calls are text.
    ToolCall(ToolCallDelta),
}

/// More of a call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// Which call of the message, from 0.
    pub index: usize,
    /// The name of the tool, in the first piece.
    pub name: Option<String>,
    /// More of the arguments: a growing prefix of one JSON text.
    pub arguments: String,
}

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
    pub(super) fn new(format: OutputFormat, prompt: &str) -> Self {
        let machine = match format.kind() {
            Kind::Plain => Machine::Plain,
            Kind::Tags(tags) => Machine::Tags(TagParser::new(tags, prompt)),
            Kind::Channels(_) => Machine::Channels(ChannelParser::new(prompt)),
        };
        Self { format, machine, waiting: VecDeque::new(), made: 0, released: 0 }
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
        events.0
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
        events.0
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

/// Events in the making; neighbours of one kind are one event.
#[derive(Debug, Default)]
struct Events(Vec<ChatEvent>);

impl Events {
    fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatEvent::Text(last)) => last.push_str(text),
            _ => self.0.push(ChatEvent::Text(text.to_owned())),
        }
    }

    fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatEvent::Reasoning(last)) => last.push_str(text),
            _ => self.0.push(ChatEvent::Reasoning(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
