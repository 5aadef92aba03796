//! Reads a generation through the parser of the model's output.

use std::collections::VecDeque;

use chat_format::{ChatEvent, OutputParser};

use crate::engine::{Canceller, Event, FinishReason, Generation, TokenOutput};

/// Reads the events of one generation as thoughts, text and tool calls.
#[derive(Debug)]
pub struct AnswerReader {
    parser: OutputParser,
    canceller: Canceller,
}

impl AnswerReader {
    /// Creates a reader with this parser. `canceller` ends the generation after its only call.
    pub fn new(parser: OutputParser, canceller: Canceller) -> Self {
        Self { parser, canceller }
    }

    /// Returns what an event adds to the answer. Text that is held back comes with a later event. A generation cancelled after its only call
    /// is complete, so its reason becomes [`FinishReason::EndToken`].
    pub fn read(&mut self, event: &mut Event) -> Vec<ChatEvent> {
        let events = match event {
            Event::Token(token) => self.parser.push(token.id, &token.text, &token.delta),
            Event::Done(finished) => {
                let events = self.parser.end(&finished.delta, finished.reason != FinishReason::EndToken);
                if self.parser.has_ended() && finished.reason == FinishReason::Cancelled {
                    finished.reason = FinishReason::EndToken;
                }
                events
            }
            Event::PromptProgress { .. }
            | Event::Prompt(_)
            | Event::Embedding(_)
            | Event::Scores(_)
            | Event::Window(_) => Vec::new(),
        };
        if self.parser.has_ended() {
            self.canceller.cancel();
        }
        events
    }

    /// True after the only call of an answer. Later events are ignored.
    pub fn has_ended(&self) -> bool {
        self.parser.has_ended()
    }

    /// The number of tokens in thoughts and their markers so far.
    pub fn reasoning_tokens(&self) -> usize {
        self.parser.reasoning_tokens()
    }

    /// Returns a handle that can cancel the generation.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }
}

/// An item of a [`ChatStream`].
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// A delta of thoughts, text or calls.
    Chat(ChatEvent),
    /// An event of the engine. The chat events of its text come before it.
    Engine(Event),
}

/// The events of one generation, with its text split into thoughts, answer and calls. Dropping it cancels the generation.
pub struct ChatStream {
    generation: Generation,
    reader: AnswerReader,
    ready: VecDeque<StreamEvent>,
}

impl ChatStream {
    /// Reads `generation` through `parser`.
    pub fn new(generation: Generation, parser: OutputParser) -> Self {
        let reader = AnswerReader::new(parser, generation.canceller());
        Self { generation, reader, ready: VecDeque::new() }
    }

    /// Prepends tokens to the generation: the beginning of an answer that it continues.
    #[must_use]
    pub(super) fn after(mut self, tokens: Vec<TokenOutput>) -> Self {
        for token in tokens {
            self.add(Event::Token(token));
        }
        self
    }

    /// Returns a handle that can cancel the generation.
    pub fn canceller(&self) -> Canceller {
        self.reader.canceller()
    }

    fn add(&mut self, mut event: Event) {
        let events = self.reader.read(&mut event);
        self.ready.extend(events.into_iter().map(StreamEvent::Chat));
        self.ready.push_back(StreamEvent::Engine(event));
    }
}

impl Iterator for ChatStream {
    type Item = StreamEvent;

    fn next(&mut self) -> Option<StreamEvent> {
        if self.ready.is_empty() {
            let event = self.generation.next()?;
            self.add(event);
        }
        self.ready.pop_front()
    }
}
