//! An answer that is being written, and the message that it becomes.

use std::ops::Range;

use chat_format::{ChatEvent, Message, Role, ToolCall, ToolChoice, random_id};

use super::ChatSession;
use crate::chat::stream::{ChatStream, StreamEvent};
use crate::engine::{Canceller, Event, FinishReason};
use crate::error::{Error, Result};

/// An answer that is being generated. When it ends or is dropped, the text so far becomes a message of the session.
pub struct Answer<'a> {
    session: &'a mut ChatSession,
    stream: ChatStream,
    text: String,
    reasoning: String,
    calls: Vec<ToolCall>,
    /// The number of complete calls.
    whole_calls: usize,
    /// The reason it has ended.
    reason: Option<FinishReason>,
}

impl<'a> Answer<'a> {
    pub(super) fn new(session: &'a mut ChatSession, stream: ChatStream) -> Self {
        let (text, reasoning) = (String::new(), String::new());
        Self { session, stream, text, reasoning, calls: Vec::new(), whole_calls: 0, reason: None }
    }

    /// Returns a handle that can cancel the answer.
    pub fn canceller(&self) -> Canceller {
        self.stream.canceller()
    }

    /// The indices of the messages that were dropped from the prompt.
    pub fn dropped(&self) -> Range<usize> {
        self.session.dropped()
    }

    /// The text so far, without thoughts and calls.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn read(&mut self, event: &ChatEvent) {
        match event {
            ChatEvent::Text(text) => self.text.push_str(text),
            ChatEvent::Reasoning(text) => self.reasoning.push_str(text),
            ChatEvent::CallStart { name, .. } => {
                let call = ToolCall {
                    id: Some(format!("call_{}", random_id())),
                    name: name.clone(),
                    arguments: String::new(),
                };
                self.calls.push(call);
            }
            ChatEvent::Args(more) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(more);
                }
            }
            ChatEvent::CallEnd => self.whole_calls = self.calls.len(),
        }
    }

    /// Takes the calls that can be executed. An interrupted answer has none. An answer that was cut by a limit keeps the calls that are
    /// complete.
    fn take_calls(&mut self) -> Vec<ToolCall> {
        let mut calls = std::mem::take(&mut self.calls);
        match self.reason {
            None | Some(FinishReason::Cancelled | FinishReason::Error(_)) => calls.clear(),
            Some(FinishReason::Length) => {
                let mut place = 0;
                calls.retain(|call| {
                    place += 1;
                    place <= self.whole_calls && call.has_object()
                });
            }
            Some(FinishReason::EndToken | FinishReason::StopString(_)) => calls.truncate(self.whole_calls),
        }
        calls
    }
}

impl Iterator for Answer<'_> {
    type Item = StreamEvent;

    fn next(&mut self) -> Option<StreamEvent> {
        let event = self.stream.next()?;
        match &event {
            StreamEvent::Chat(event) => self.read(event),
            StreamEvent::Engine(Event::Done(finished)) => self.reason = Some(finished.reason.clone()),
            StreamEvent::Engine(_) => {}
        }
        Some(event)
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let is_whole = !matches!(self.reason, None | Some(FinishReason::Cancelled | FinishReason::Error(_)));
        let tool_calls = self.take_calls();
        let (text, reasoning) = (std::mem::take(&mut self.text), std::mem::take(&mut self.reasoning));
        let reasoning = Some(reasoning).filter(|text| !text.is_empty());
        let mut message = Message { reasoning, tool_calls, ..Message::assistant(text) };
        if !message.tool_calls.is_empty() && message.text().is_empty() {
            message.parts.clear();
        }
        self.session.record(message, is_whole);
    }
}

impl ChatSession {
    /// Starts the answer to the results of all calls. Without `may_call` the model sees no tools and answers with text.
    pub fn continue_after_calls(&mut self, may_call: bool) -> Result<Answer<'_>> {
        if self.messages.last().is_none_or(|last| last.role != Role::Tool) {
            return Err(Error::request("messages", "must end with the result of a tool call"));
        }
        let choice = if may_call { ToolChoice::Auto } else { ToolChoice::None };
        let stream = self.start(&choice)?;
        Ok(Answer::new(self, stream))
    }

    /// Adds an answer. An empty answer counts if the model ended it. If it was interrupted before its first word, the next message replaces
    /// the question.
    fn record(&mut self, answer: Message, is_whole: bool) {
        if is_whole || !answer.text().is_empty() {
            self.messages.push(answer);
        } else {
            self.is_unanswered = true;
        }
    }
}
