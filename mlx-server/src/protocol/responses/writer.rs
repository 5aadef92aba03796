//! Writes answers as responses, as one object or as events. Invariants: only the deltas decide what is written, so a stream and a whole
//! response are equal. The ids of items derive from the response's id, so a recomputed answer has the same ids.

use bytes::Bytes;
use mlx_core::engine::Usage;
use mlx_json::Map;
use serde::Serialize;
use serde_json::{Value, json};

use super::object::{
    IncompleteDetails, InputTokensDetails, OutputItem, OutputPart, OutputTokensDetails, Response,
    ResponseError, ResponseUsage, Status,
};
use super::tools::{ClientTool, RequestTools, custom_input};
use crate::answer::{AnswerMeta, AnswerWriter};
use crate::delta::{CallDelta, Delta, End, EndReason, Progress, Token};
use crate::error::ApiError;
use crate::protocol::openai::logprobs::{ChatLogprob, ChatLogprobs};

/// The parts of a request that its response repeats.
pub(crate) struct EchoedRequest {
    /// The id of the response.
    pub(crate) id: String,
    /// The fields of the request that the response repeats.
    pub(crate) echo: Map,
    /// The tools.
    pub(crate) tools: RequestTools,
    /// True to report log-probabilities.
    pub(crate) logprobs: bool,
}

/// Writes one response.
pub(crate) struct Writer {
    response: Response,
    meta: AnswerMeta,
    tools: RequestTools,
    logprobs: bool,
    /// Tokens without text so far, such as parts of a character.
    tokens: Vec<Token>,
    open: Option<OpenItem>,
    /// The sequence number of the next event.
    sequence: u64,
}

/// The item in progress.
struct OpenItem {
    id: String,
    kind: Kind,
    /// The text so far.
    text: String,
    logprobs: Vec<ChatLogprob>,
}

enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, client_tool: ClientTool },
}

impl Kind {
    /// Returns true if the item has a content part.
    fn has_part(&self) -> bool {
        !matches!(self, Self::Call { .. })
    }
}

impl Writer {
    /// Creates a writer for one response.
    pub(crate) fn new(request: EchoedRequest, meta: AnswerMeta) -> Self {
        let EchoedRequest { id, echo, tools, logprobs } = request;
        let response = Response {
            id,
            object: "response",
            created_at: meta.created,
            completed_at: None,
            status: Status::InProgress,
            background: false,
            error: None,
            incomplete_details: None,
            output: Vec::new(),
            usage: None,
            model: meta.model.clone(),
            seed: meta.seed,
            request: echo,
        };
        Self { response, meta, tools, logprobs, tokens: Vec::new(), open: None, sequence: 0 }
    }

    /// Returns the current state of the response as JSON.
    pub(crate) fn to_json(&self) -> mlx_json::Value {
        // Serializing cannot fail for this type.
        mlx_json::to_value(&self.response).unwrap_or_default()
    }

    fn event(&mut self, kind: &'static str, fields: &impl Serialize) -> Bytes {
        let bytes = event_bytes(kind, self.sequence, fields);
        self.sequence += 1;
        bytes
    }

    /// Returns an event with the whole response.
    fn response_event(&mut self, kind: &'static str) -> Bytes {
        let bytes = event_bytes(kind, self.sequence, &WholeResponse { response: &self.response });
        self.sequence += 1;
        bytes
    }

    /// Returns an event of the open item.
    fn item_event(&mut self, kind: &'static str, more: Value) -> Bytes {
        let index = self.response.output.len();
        let open = self.open.as_ref();
        let mut fields = json!({"item_id": open.map(|open| open.id.as_str()), "output_index": index});
        if open.is_some_and(|open| open.kind.has_part()) {
            fields["content_index"] = 0.into();
        }
        if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
            fields.extend(more);
        }
        self.event(kind, &fields)
    }

    fn begin(&mut self, prefix: &str, kind: Kind, events: &mut Vec<Bytes>) {
        self.end_item(Status::Completed, events);
        let index = self.response.output.len();
        let id = format!("{prefix}_{}{index:02}", self.response.id.trim_start_matches("resp_"));
        let open = OpenItem { id, kind, text: String::new(), logprobs: Vec::new() };
        let item = json(&open.item(Status::InProgress));
        let part = open.part().map(|part| json(&part));
        self.open = Some(open);
        events.push(self.event("response.output_item.added", &json!({"output_index": index, "item": item})));
        if let Some(part) = part {
            events.push(self.item_event("response.content_part.added", json!({ "part": part })));
        }
    }

    fn reasoning(&mut self, text: &str, events: &mut Vec<Bytes>) {
        if !matches!(self.open, Some(OpenItem { kind: Kind::Reasoning, .. })) {
            self.begin("rs", Kind::Reasoning, events);
        }
        self.tokens.clear();
        self.add(text);
        events.push(self.item_event("response.reasoning_text.delta", json!({ "delta": text })));
    }

    fn content(&mut self, text: &str, events: &mut Vec<Bytes>) {
        if !matches!(self.open, Some(OpenItem { kind: Kind::Message, .. })) {
            self.begin("msg", Kind::Message, events);
        }
        let tokens = std::mem::take(&mut self.tokens);
        let logprobs =
            if self.logprobs { ChatLogprobs::new(&tokens, &self.meta.tokenizer).content } else { Vec::new() };
        self.add(text);
        let logprobs_json = json(&logprobs);
        if let Some(open) = &mut self.open {
            open.logprobs.extend(logprobs);
        }
        events.push(
            self.item_event("response.output_text.delta", json!({"delta": text, "logprobs": logprobs_json})),
        );
    }

    fn call(&mut self, call: CallDelta, events: &mut Vec<Bytes>) {
        self.tokens.clear();
        if let Some((_, name)) = call.head {
            let client_tool = self.tools.client_tool(&name);
            let prefix = if client_tool.is_custom { "ctc" } else { "fc" };
            let call_id = format!("call_{}{:02}", self.response.id.trim_start_matches("resp_"), call.index);
            self.begin(prefix, Kind::Call { call_id, client_tool }, events);
        }
        if call.arguments.is_empty() {
            return;
        }
        self.add(&call.arguments);
        // The input of a custom tool is sent once its JSON is complete.
        if !self.open.as_ref().is_some_and(OpenItem::is_custom) {
            events.push(
                self.item_event("response.function_call_arguments.delta", json!({"delta": call.arguments})),
            );
        }
    }

    fn add(&mut self, text: &str) {
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
        }
    }

    fn end_item(&mut self, status: Status, events: &mut Vec<Bytes>) {
        let Some(open) = &self.open else { return };
        let (text, logprobs) = (open.text.clone(), json(&open.logprobs));
        let part = open.part().map(|part| json(&part));
        match &open.kind {
            Kind::Reasoning => {
                events.push(self.item_event("response.reasoning_text.done", json!({ "text": text })));
            }
            Kind::Message => {
                let fields = json!({"text": text, "logprobs": logprobs});
                events.push(self.item_event("response.output_text.done", fields));
            }
            Kind::Call { client_tool: ClientTool { is_custom: true, .. }, .. } => {
                let input = custom_input(&text);
                events.push(
                    self.item_event("response.custom_tool_call_input.delta", json!({ "delta": input })),
                );
                events
                    .push(self.item_event("response.custom_tool_call_input.done", json!({ "input": input })));
            }
            Kind::Call { client_tool, .. } => {
                let fields = json!({"name": client_tool.name, "arguments": text});
                events.push(self.item_event("response.function_call_arguments.done", fields));
            }
        }
        if let Some(part) = part {
            events.push(self.item_event("response.content_part.done", json!({ "part": part })));
        }
        let Some(open) = self.open.take() else { return };
        let item = open.item(status);
        let fields = json!({"output_index": self.response.output.len(), "item": json(&item)});
        events.push(self.event("response.output_item.done", &fields));
        self.response.output.push(item);
    }

    fn end(&mut self, end: &End, events: &mut Vec<Bytes>) {
        let is_truncated = end.reason == EndReason::Length;
        let status = if is_truncated { Status::Incomplete } else { Status::Completed };
        self.end_item(status, events);
        self.response.status = status;
        self.response.incomplete_details =
            is_truncated.then_some(IncompleteDetails { reason: "max_output_tokens" });
        self.response.usage = Some(usage(&end.usage, end.reasoning_tokens));
    }

    /// Records the end of the response.
    fn finish(&mut self) {
        self.response.completed_at = Some(crate::time::now());
    }
}

impl AnswerWriter for Writer {
    fn opening(&mut self) -> Vec<Bytes> {
        vec![self.response_event("response.created"), self.response_event("response.in_progress")]
    }

    fn delta(&mut self, delta: Delta) -> Vec<Bytes> {
        let mut events = Vec::new();
        if self.logprobs {
            self.tokens.extend(delta.tokens);
        }
        if !delta.reasoning.is_empty() {
            self.reasoning(&delta.reasoning, &mut events);
        }
        if !delta.content.is_empty() {
            self.content(&delta.content, &mut events);
        }
        for call in delta.calls {
            self.call(call, &mut events);
        }
        if let Some(end) = delta.end {
            self.end(&end, &mut events);
        }
        events
    }

    /// Returns an event, since some clients ignore comments. It repeats the previous sequence number, because keep-alives are not replayed to clients
    /// that reconnect.
    fn keep_alive(&mut self) -> Bytes {
        let fields = WholeResponse { response: &self.response };
        event_bytes("response.in_progress", self.sequence.saturating_sub(1), &fields)
    }

    /// Like a keep-alive: the number of progress events depends on the load.
    fn progress(&mut self, _choice: usize, progress: Progress) -> Option<Bytes> {
        let fields = ResponseProgress { response: &self.response, prompt_progress: progress };
        Some(event_bytes("response.in_progress", self.sequence.saturating_sub(1), &fields))
    }

    fn failure(&mut self, error: &ApiError) -> Vec<Bytes> {
        let mut events = Vec::new();
        self.end_item(Status::Incomplete, &mut events);
        self.response.status = if error.is_cancelled() { Status::Cancelled } else { Status::Failed };
        self.response.error = Some(ResponseError { code: error.code(), message: error.message() });
        self.finish();
        events.push(self.response_event("response.failed"));
        events
    }

    fn closing(&mut self) -> Vec<Bytes> {
        self.finish();
        let is_truncated = self.response.status == Status::Incomplete;
        vec![self.response_event(if is_truncated { "response.incomplete" } else { "response.completed" })]
    }

    fn into_json(mut self, choices: Vec<Vec<Delta>>) -> Vec<u8> {
        for delta in choices.into_iter().flatten() {
            self.delta(delta);
        }
        self.finish();
        // Serializing cannot fail for this type.
        serde_json::to_vec(&self.response).unwrap_or_default()
    }
}

impl OpenItem {
    fn is_custom(&self) -> bool {
        matches!(&self.kind, Kind::Call { client_tool, .. } if client_tool.is_custom)
    }

    /// Returns the content part. Calls have none.
    fn part(&self) -> Option<OutputPart> {
        match self.kind {
            Kind::Reasoning => Some(OutputPart::ReasoningText { text: self.text.clone() }),
            Kind::Message => Some(OutputPart::text(self.text.clone(), self.logprobs.clone())),
            Kind::Call { .. } => None,
        }
    }

    /// Returns the item. A new item has no content.
    fn item(&self, status: Status) -> OutputItem {
        let id = self.id.clone();
        let is_new = status == Status::InProgress;
        let content: Vec<OutputPart> = if is_new { Vec::new() } else { self.part().into_iter().collect() };
        match &self.kind {
            Kind::Reasoning => {
                OutputItem::Reasoning { id, summary: Vec::new(), content, encrypted_content: None, status }
            }
            Kind::Message => OutputItem::Message { id, status, role: "assistant", content },
            Kind::Call { call_id, client_tool: ClientTool { name, namespace, is_custom } } => {
                let (call_id, name, namespace) = (call_id.clone(), name.clone(), namespace.clone());
                if *is_custom {
                    let input = if is_new { String::new() } else { custom_input(&self.text) };
                    OutputItem::CustomToolCall { id, status, call_id, name, namespace, input }
                } else {
                    OutputItem::FunctionCall {
                        id,
                        status,
                        arguments: self.text.clone(),
                        call_id,
                        name,
                        namespace,
                    }
                }
            }
        }
    }
}

fn usage(usage: &Usage, reasoning_tokens: usize) -> ResponseUsage {
    ResponseUsage {
        input_tokens: usage.prompt_tokens,
        input_tokens_details: InputTokensDetails {
            cached_tokens: usage.cached_tokens,
            prefix_miss: usage.miss.map(Into::into),
        },
        output_tokens: usage.completion_tokens,
        output_tokens_details: OutputTokensDetails { reasoning_tokens },
        total_tokens: usage.prompt_tokens + usage.completion_tokens,
    }
}

/// The data of an event.
#[derive(Serialize)]
struct EventData<'a, T> {
    r#type: &'static str,
    sequence_number: u64,
    #[serde(flatten)]
    fields: &'a T,
}

/// The fields of an event with the progress of the prompt.
#[derive(Serialize)]
struct ResponseProgress<'a> {
    response: &'a Response,
    prompt_progress: Progress,
}

/// The fields of an event that has the whole response.
#[derive(Serialize)]
struct WholeResponse<'a> {
    response: &'a Response,
}

fn event_bytes(kind: &'static str, sequence: u64, fields: &impl Serialize) -> Bytes {
    // Serializing cannot fail for these types.
    let data = serde_json::to_string(&EventData { r#type: kind, sequence_number: sequence, fields });
    Bytes::from(format!("event: {kind}\nid: {sequence}\ndata: {}\n\n", data.unwrap_or_default()))
}

fn json<T: Serialize>(value: &T) -> Value {
    // Serializing cannot fail for these types.
    serde_json::to_value(value).unwrap_or_default()
}

#[cfg(test)]
mod tests;
