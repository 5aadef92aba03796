//! A generation read through the parser of its model's output.

use std::collections::VecDeque;

use chat_format::{ChatEvent, OutputParser};

use crate::engine::{Canceller, Event, FinishReason, Generation, TokenOutput};

/// What a [`ChatStream`] gives.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// More of a thought or of the answer.
    Chat(ChatEvent),
    /// What the engine reports; the events of its text come before it.
    Engine(Event),
}

/// The events of one generation, its text split into thoughts and answer. Dropping it cancels the generation.
pub struct ChatStream {
    generation: Generation,
    parser: OutputParser,
    ready: VecDeque<StreamEvent>,
}

impl ChatStream {
    /// Reads `generation` through `parser`.
    pub fn new(generation: Generation, parser: OutputParser) -> Self {
        Self { generation, parser, ready: VecDeque::new() }
    }

    /// The same with tokens before those of the generation: the beginning of an answer that it continues.
    #[must_use]
    pub(super) fn behind(mut self, tokens: Vec<TokenOutput>) -> Self {
        for token in tokens {
            let events = self.parser.push(token.id, &token.text, &token.delta);
            self.ready.extend(events.into_iter().map(StreamEvent::Chat));
            self.ready.push_back(StreamEvent::Engine(Event::Token(token)));
        }
        self
    }

    /// A way to end the generation from elsewhere.
    pub fn canceller(&self) -> Canceller {
        self.generation.canceller()
    }
}

impl Iterator for ChatStream {
    type Item = StreamEvent;

    fn next(&mut self) -> Option<StreamEvent> {
        if self.ready.is_empty() {
            let mut event = self.generation.next()?;
            let events = match &mut event {
                Event::Token(token) => self.parser.push(token.id, &token.text, &token.delta),
                Event::Done(finished) => {
                    let events = self.parser.end(&finished.delta, finished.reason != FinishReason::EndToken);
                    // A generation that ended with its only call was not interrupted.
                    if self.parser.has_ended() && finished.reason == FinishReason::Cancelled {
                        finished.reason = FinishReason::EndToken;
                    }
                    events
                }
                Event::PromptProgress { .. } | Event::Prompt(_) | Event::Embedding(_) => Vec::new(),
            };
            if self.parser.has_ended() {
                // Nothing that follows is read.
                self.generation.canceller().cancel();
            }
            self.ready.extend(events.into_iter().map(StreamEvent::Chat));
            self.ready.push_back(StreamEvent::Engine(event));
        }
        self.ready.pop_front()
    }
}
