//! Writes answers as responses, as one object or as events. Invariants: only the deltas decide what is written, so a stream and a whole
//! response are equal. The ids of items derive from the response's id, so a recomputed answer has the same ids.

mod event;
mod mcp;
mod open_item;

use std::collections::VecDeque;

use bytes::Bytes;
use mlx_core::engine::Usage;
use mlx_json::Map;
use serde::Serialize;
use serde_json::{Value, json};

use super::custom_tool::custom_input;
use super::object::{
    IncompleteDetails, InputTokensDetails, OutputTokensDetails, Response, ResponseError, ResponseUsage,
    Status,
};
use super::tools::{RequestTools, ToolKind};
use crate::answer::{AnswerMeta, AnswerWriter};
use crate::delta::{CallDelta, Delta, End, EndReason, Progress, Token};
use crate::error::ApiError;
use crate::protocol::openai::logprobs::ChatLogprobs;
use event::{ResponseProgress, WholeResponse, event_bytes, json};
use open_item::{Kind, OpenItem};

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
    /// The indices of running calls in the output, in their order.
    calling: VecDeque<usize>,
    /// The sequence number of the next event.
    sequence: u64,
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
        Self {
            response,
            meta,
            tools,
            logprobs,
            tokens: Vec::new(),
            open: None,
            calling: VecDeque::new(),
            sequence: 0,
        }
    }

    /// Returns the current state of the response as JSON.
    pub(crate) fn to_json(&self) -> mlx_json::Value {
        // Serializing cannot fail for this type.
        mlx_json::to_value(&self.response).unwrap_or_default()
    }

    fn event(&mut self, kind: &str, fields: &impl Serialize) -> Bytes {
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

    /// Returns the id of the item at this index of the output.
    fn item_id(&self, prefix: &str, index: usize) -> String {
        format!("{prefix}_{}{index:02}", self.response.id.trim_start_matches("resp_"))
    }

    fn begin(&mut self, prefix: &str, kind: Kind, events: &mut Vec<Bytes>) {
        self.end_item(Status::Completed, events);
        let index = self.response.output.len();
        let id = self.item_id(prefix, index);
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
            let prefix = match client_tool.kind {
                ToolKind::Function => "fc",
                ToolKind::Custom => "ctc",
                ToolKind::Mcp { needs_approval: false, .. } => "mcp",
                ToolKind::Mcp { needs_approval: true, .. } => "mcpr",
            };
            let call_id = format!("call_{}{:02}", self.response.id.trim_start_matches("resp_"), call.index);
            self.begin(prefix, Kind::Call { call_id, client_tool }, events);
            if prefix == "mcp" {
                events.push(self.item_event("response.mcp_call.in_progress", json!({})));
            }
        }
        if call.arguments.is_empty() {
            return;
        }
        self.add(&call.arguments);
        // The input of a custom tool is sent once its JSON is complete, and so is a request for an approval.
        let kind = match self.open.as_ref().and_then(OpenItem::tool_kind) {
            Some(ToolKind::Function) => "response.function_call_arguments.delta",
            Some(ToolKind::Mcp { needs_approval: false, .. }) => "response.mcp_call_arguments.delta",
            _ => return,
        };
        events.push(self.item_event(kind, json!({"delta": call.arguments})));
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
            Kind::Call { client_tool, .. } => {
                let (kind, name) = (client_tool.kind.clone(), client_tool.name.clone());
                self.end_arguments(&kind, &name, &text, events);
            }
        }
        if let Some(part) = part {
            events.push(self.item_event("response.content_part.done", json!({ "part": part })));
        }
        let Some(open) = self.open.take() else { return };
        let item = open.item(status);
        if status == Status::Completed
            && matches!(open.tool_kind(), Some(ToolKind::Mcp { needs_approval: false, .. }))
        {
            // It is done when it has a result.
            self.calling.push_back(self.response.output.len());
            self.response.output.push(item);
            return;
        }
        let fields = json!({"output_index": self.response.output.len(), "item": json(&item)});
        events.push(self.event("response.output_item.done", &fields));
        self.response.output.push(item);
    }

    /// Writes the end of the arguments of a call.
    fn end_arguments(&mut self, kind: &ToolKind, name: &str, text: &str, events: &mut Vec<Bytes>) {
        match kind {
            ToolKind::Custom => {
                let input = custom_input(text);
                let delta =
                    self.item_event("response.custom_tool_call_input.delta", json!({ "delta": input }));
                let done = self.item_event("response.custom_tool_call_input.done", json!({ "input": input }));
                events.extend([delta, done]);
            }
            ToolKind::Function => {
                let fields = json!({"name": name, "arguments": text});
                events.push(self.item_event("response.function_call_arguments.done", fields));
            }
            ToolKind::Mcp { needs_approval: false, .. } => {
                events.push(self.item_event("response.mcp_call_arguments.done", json!({"arguments": text})));
            }
            ToolKind::Mcp { needs_approval: true, .. } => {}
        }
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
        if let Some(event) = delta.mcp {
            self.mcp(event, &mut events);
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

#[cfg(test)]
mod tests;
