//! Writes answers in Ollama's format, as one object or as JSON lines. Calls are written when they are complete, with arguments as objects.

use bytes::Bytes;
use mlx_json::Value;
use serde_json::json;

use crate::answer::{AnswerMeta, AnswerWriter};
use crate::delta::{CallDelta, Delta, End, EndReason};
use crate::error::ApiError;
use crate::time::rfc3339;

/// The argument with the text of arguments that are not a JSON object.
const UNPARSED: &str = "unparsed_arguments";

/// The endpoint, which determines the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `POST /api/chat`
    Chat,
    /// `POST /api/generate`
    Generate,
}

/// Writes one answer.
pub(crate) struct Writer {
    endpoint: Endpoint,
    meta: AnswerMeta,
    /// The name of the unfinished call, and its arguments so far.
    call: Option<(String, String)>,
    /// The number of written calls.
    calls: usize,
    end: Option<End>,
}

impl Writer {
    /// Creates a writer for one answer.
    pub(crate) fn new(endpoint: Endpoint, meta: AnswerMeta) -> Self {
        Self { endpoint, meta, call: None, calls: 0, end: None }
    }

    /// Returns a line with the next text, thinking and calls.
    fn line(&self, text: &str, thought: &str, calls: &[Value]) -> Value {
        let now = rfc3339(crate::time::now());
        let mut line =
            Value::object([("model", self.meta.model.as_str().into()), ("created_at", now.into())]);
        match self.endpoint {
            Endpoint::Chat => {
                let mut message = Value::object([("role", "assistant".into()), ("content", text.into())]);
                if !thought.is_empty() {
                    message.insert("thinking", thought.into());
                }
                if !calls.is_empty() {
                    message.insert("tool_calls", calls.to_vec().into());
                }
                line.insert("message", message);
            }
            Endpoint::Generate => {
                line.insert("response", text.into());
                if !thought.is_empty() {
                    line.insert("thinking", thought.into());
                }
            }
        }
        line.insert("done", false.into());
        line
    }

    /// Adds the reason, token counts and times to the last line.
    fn finish(&self, line: &mut Value) {
        let Some(end) = &self.end else { return };
        let (usage, timings) = (&end.usage, &end.timings);
        let nanoseconds = |seconds: f64| (seconds.max(0.0) * 1e9) as u64;
        let reason = if end.reason == EndReason::Length { "length" } else { "stop" };
        let more = json!({
            "done": true,
            "done_reason": reason,
            "total_duration": nanoseconds(timings.queue + timings.prefill + timings.decode),
            "load_duration": nanoseconds(timings.queue),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(timings.prefill),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(timings.decode),
        });
        if let (Value::Object(line), Value::Object(more)) = (line, more.into()) {
            line.extend(more);
        }
    }

    /// Returns the current call, and clears it.
    fn take_call(&mut self) -> Option<Value> {
        let (name, arguments) = self.call.take()?;
        let text = if arguments.is_empty() { "{}" } else { &arguments };
        let object = mlx_json::parse(text.as_bytes()).ok().filter(|value| value.as_object().is_some());
        // The token limit may have truncated the JSON.
        let object = object.unwrap_or_else(|| Value::object([(UNPARSED, arguments.into())]));
        let index = self.calls.into();
        self.calls += 1;
        let function = Value::object([("index", index), ("name", name.into()), ("arguments", object)]);
        Some(Value::object([("function", function)]))
    }

    /// Adds a delta. Returns the calls that are now complete.
    fn calls(&mut self, delta: &[CallDelta], is_end: bool) -> Vec<Value> {
        let mut complete = Vec::new();
        for call in delta {
            if let Some((_, name)) = &call.head {
                complete.extend(self.take_call());
                self.call = Some((name.clone(), String::new()));
            }
            if let Some((_, arguments)) = &mut self.call {
                arguments.push_str(&call.arguments);
            }
        }
        if is_end {
            complete.extend(self.take_call());
        }
        complete
    }
}

impl AnswerWriter for Writer {
    const STREAM_TYPE: &'static str = "application/x-ndjson";

    fn opening(&mut self) -> Vec<Bytes> {
        Vec::new()
    }

    fn delta(&mut self, delta: Delta) -> Vec<Bytes> {
        let calls = self.calls(&delta.calls, delta.end.is_some());
        if delta.end.is_some() {
            self.end = delta.end;
        }
        let is_silent = delta.content.is_empty() && delta.reasoning.is_empty() && calls.is_empty();
        if is_silent { Vec::new() } else { vec![bytes(&self.line(&delta.content, &delta.reasoning, &calls))] }
    }

    /// Returns a line with an empty delta, since JSON lines have no comments.
    fn keep_alive(&mut self) -> Bytes {
        bytes(&self.line("", "", &[]))
    }

    fn failure(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![bytes(&Value::object([("error", error.message().into())]))]
    }

    fn closing(&mut self) -> Vec<Bytes> {
        let mut line = self.line("", "", &[]);
        self.finish(&mut line);
        vec![bytes(&line)]
    }

    fn into_json(mut self, choices: Vec<Vec<Delta>>) -> Vec<u8> {
        let (mut text, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
        for delta in choices.into_iter().flatten() {
            calls.extend(self.calls(&delta.calls, delta.end.is_some()));
            text.push_str(&delta.content);
            thought.push_str(&delta.reasoning);
            self.end = delta.end.or(self.end.take());
        }
        let mut answer = self.line(&text, &thought, &calls);
        self.finish(&mut answer);
        answer.to_string().into_bytes()
    }
}

/// Returns the response to a request that only loads the model.
pub(crate) fn loaded_line(endpoint: Endpoint, model: &str, reason: &str) -> serde_json::Value {
    let mut line = json!({"model": model, "created_at": rfc3339(crate::time::now())});
    match endpoint {
        Endpoint::Chat => line["message"] = json!({"role": "assistant", "content": ""}),
        Endpoint::Generate => line["response"] = "".into(),
    }
    line["done_reason"] = reason.into();
    line["done"] = true.into();
    line
}

fn bytes(line: &Value) -> Bytes {
    Bytes::from(format!("{line}\n"))
}

#[cfg(test)]
mod tests;
