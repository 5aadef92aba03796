//! Writes answers in the format of the Messages API, as one message or as events.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;

use super::answer::{ContentBlock, MessageAnswer, MessagesEvent, MessagesUsage, StopDelta};
use super::assembly::{Assembly, Step, blocks};
use super::error;
use super::thinking::Display;
use crate::answer::{AnswerMeta, AnswerWriter};
use crate::delta::{Delta, End, EndReason, Progress};
use crate::error::ApiError;
use crate::ids::random_id;

/// The maximum time without an event while thinking is withheld.
const MAX_SILENCE: Duration = Duration::from_secs(5);

/// Writes one answer.
pub(crate) struct Writer {
    id: String,
    meta: AnswerMeta,
    assembly: Assembly,
    /// The number of started blocks.
    started_blocks: usize,
    /// The time of the last event.
    last_event: Instant,
}

impl Writer {
    /// Creates a writer for one answer.
    pub(crate) fn new(display: Display, meta: AnswerMeta) -> Self {
        let (id, assembly) = (format!("msg_{}", random_id()), Assembly::new(display));
        Self { id, meta, assembly, started_blocks: 0, last_event: Instant::now() }
    }

    fn message(&self, content: Vec<ContentBlock>, stop: StopDelta, usage: MessagesUsage) -> MessageAnswer {
        let StopDelta { stop_reason, stop_sequence } = stop;
        let (id, model) = (self.id.clone(), self.meta.model.clone());
        MessageAnswer {
            id,
            kind: "message",
            role: "assistant",
            model,
            content,
            stop_reason,
            stop_sequence,
            usage,
        }
    }

    fn event(&mut self, step: Step) -> MessagesEvent {
        let index = self.started_blocks.saturating_sub(1);
        match step {
            Step::Open(content_block) => {
                self.started_blocks += 1;
                MessagesEvent::ContentBlockStart { index: self.started_blocks - 1, content_block }
            }
            Step::Delta(delta) => MessagesEvent::ContentBlockDelta { index, delta },
            Step::Close => MessagesEvent::ContentBlockStop { index },
        }
    }

    /// Returns the stop reason. If the answer is shorter than the client's limit, it ended at the end of the context.
    fn stop(&self, end: &End) -> StopDelta {
        let is_truncated =
            self.meta.max_tokens.is_some_and(|max_tokens| end.usage.completion_tokens < max_tokens);
        let (stop_reason, stop_sequence) = match &end.reason {
            EndReason::EndToken => ("end_turn", None),
            EndReason::StopString(text) => ("stop_sequence", Some(text.clone())),
            EndReason::ToolCalls => ("tool_use", None),
            EndReason::Length if is_truncated => ("model_context_window_exceeded", None),
            EndReason::Length => ("max_tokens", None),
        };
        StopDelta { stop_reason: Some(stop_reason), stop_sequence }
    }
}

impl AnswerWriter for Writer {
    fn opening(&mut self) -> Vec<Bytes> {
        let input_tokens = self.meta.prompts.iter().map(|prompt| prompt.ids.len()).sum();
        let usage = MessagesUsage { input_tokens, ..MessagesUsage::default() };
        let stop = StopDelta { stop_reason: None, stop_sequence: None };
        vec![event_bytes(&MessagesEvent::MessageStart { message: self.message(Vec::new(), stop, usage) })]
    }

    fn delta(&mut self, delta: Delta) -> Vec<Bytes> {
        let end = delta.end.clone();
        let steps = self.assembly.delta(delta);
        let mut events: Vec<Bytes> = steps.into_iter().map(|step| event_bytes(&self.event(step))).collect();
        if let Some(end) = end {
            let usage = MessagesUsage::new(&end.usage, end.reasoning_tokens);
            events.push(event_bytes(&MessagesEvent::MessageDelta { delta: self.stop(&end), usage }));
        }
        if events.is_empty() && self.last_event.elapsed() > MAX_SILENCE {
            events.push(self.keep_alive());
        }
        if !events.is_empty() {
            self.last_event = Instant::now();
        }
        events
    }

    fn keep_alive(&mut self) -> Bytes {
        event_bytes(&MessagesEvent::Ping { prompt_progress: None })
    }

    fn progress(&mut self, _choice: usize, progress: Progress) -> Option<Bytes> {
        self.last_event = Instant::now();
        Some(event_bytes(&MessagesEvent::Ping { prompt_progress: Some(progress) }))
    }

    fn failure(&mut self, failed: &ApiError) -> Vec<Bytes> {
        vec![named_event("error", &error::of_stream(failed))]
    }

    fn closing(&mut self) -> Vec<Bytes> {
        vec![event_bytes(&MessagesEvent::MessageStop)]
    }

    fn into_json(mut self, choices: Vec<Vec<Delta>>) -> Vec<u8> {
        let deltas: Vec<Delta> = choices.into_iter().flatten().collect();
        let end = deltas.iter().find_map(|delta| delta.end.clone());
        let steps: Vec<Step> = deltas.into_iter().flat_map(|delta| self.assembly.delta(delta)).collect();
        let (stop, usage) = match end {
            Some(end) => (self.stop(&end), MessagesUsage::new(&end.usage, end.reasoning_tokens)),
            // Unreachable: an answer without an end is an error, which is written elsewhere.
            None => (StopDelta { stop_reason: None, stop_sequence: None }, MessagesUsage::default()),
        };
        json(&self.message(blocks(steps), stop, usage)).into_bytes()
    }
}

fn event_bytes(event: &MessagesEvent) -> Bytes {
    named_event(event.name(), event)
}

fn named_event<T: Serialize>(name: &str, data: &T) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {}\n\n", json(data)))
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("answers can be serialized as JSON")
}

#[cfg(test)]
mod tests;
