//! Writes the objects of chat answers.

use serde_json::Value;

use super::{Writer, finish_reason, json};
use crate::delta::{CallDelta, Delta, Progress, Token};
use crate::protocol::openai::answer::{
    CallObject, CalledFunction, ChatAnswer, ChatChoice, ChatChunk, ChatDelta, ChatDeltaChoice, ChatMessage,
};
use crate::protocol::openai::logprobs::ChatLogprobs;

impl Writer {
    pub(super) fn chat_opening(&self, choice: usize) -> String {
        let delta = ChatDelta { role: Some("assistant"), content: Some(Value::Null), ..ChatDelta::default() };
        let opening =
            ChatDeltaChoice { index: choice, delta, logprobs: None, finish_reason: None, token_ids: None };
        let mut chunk: ChatChunk = self.answer("chat.completion.chunk", vec![opening]);
        let prompt = &self.prompt_of(choice).0.ids;
        chunk.prompt_token_ids = self.output_options.token_ids.then(|| prompt.clone());
        json(&chunk)
    }

    pub(super) fn chat_progress(&self, choice: usize, progress: Progress) -> String {
        let delta = ChatDelta::default();
        let choice =
            ChatDeltaChoice { index: choice, delta, logprobs: None, finish_reason: None, token_ids: None };
        let mut chunk: ChatChunk = self.answer("chat.completion.chunk", vec![choice]);
        chunk.prompt_progress = Some(progress);
        json(&chunk)
    }

    pub(super) fn chat_chunk(&self, delta: Delta) -> String {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let message = ChatDelta {
            role: None,
            content: some(delta.content).map(Value::String),
            reasoning_content: some(delta.reasoning),
            tool_calls: delta.calls.into_iter().map(|call| call_object(call, true)).collect(),
        };
        let choice = ChatDeltaChoice {
            index: delta.choice,
            delta: message,
            logprobs: self.chat_logprobs(&delta.tokens).filter(|_| !delta.tokens.is_empty()),
            finish_reason: delta.end.map(|end| finish_reason(&end.reason)),
            token_ids: self.ids(&delta.tokens),
        };
        let chunk: ChatChunk = self.answer("chat.completion.chunk", vec![choice]);
        json(&chunk)
    }

    pub(super) fn chat_json(&self, deltas: Vec<Delta>) -> String {
        let choices = deltas.into_iter().map(|delta| self.chat_choice(delta)).collect();
        let mut answer: ChatAnswer = self.answer("chat.completion", choices);
        (answer.usage, answer.timings) = (Some(self.usage()), self.timings());
        let prompt = &self.prompt_of(0).0.ids;
        answer.prompt_token_ids = self.output_options.token_ids.then(|| prompt.clone());
        json(&answer)
    }

    fn chat_choice(&self, delta: Delta) -> ChatChoice {
        let has_calls = !delta.calls.is_empty();
        let message = ChatMessage {
            role: "assistant",
            content: Some(delta.content).filter(|text| !(has_calls && text.is_empty())),
            tool_calls: delta.calls.into_iter().map(|call| call_object(call, false)).collect(),
            reasoning_content: Some(delta.reasoning).filter(|text| !text.is_empty()),
            refusal: None,
        };
        ChatChoice {
            index: delta.choice,
            message,
            logprobs: self.chat_logprobs(&delta.tokens),
            // Unreachable: an answer without an end is an error, which is written elsewhere.
            finish_reason: delta.end.map_or("error", |end| finish_reason(&end.reason)),
            token_ids: self.ids(&delta.tokens),
        }
    }

    fn chat_logprobs(&self, tokens: &[Token]) -> Option<ChatLogprobs> {
        self.output_options.logprobs.then(|| ChatLogprobs::new(tokens, &self.meta.tokenizer))
    }
}

fn call_object(call: CallDelta, is_delta: bool) -> CallObject {
    let CallDelta { index, head, arguments } = call;
    let (id, name) = head.map(|(id, name)| (format!("call_{id}"), name)).unzip();
    let kind = id.as_ref().map(|_| "function");
    let index = is_delta.then_some(index);
    CallObject { index, id, kind, function: CalledFunction { name, arguments } }
}
