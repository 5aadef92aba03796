//! Writes the items of MCP servers: lists of tools, calls with their results, and requests for an approval.

use bytes::Bytes;
use chat_format::Part;
use serde_json::{Value, json};

use super::super::object::{CallStatus, OutputItem, Status};
use super::Writer;
use super::event;
use crate::delta::{CallResult, McpCall, McpEvent, output_text};
use crate::protocol::image::data_url;

impl Writer {
    /// Writes the events of the server's work.
    pub(super) fn mcp(&mut self, event: McpEvent, events: &mut Vec<Bytes>) {
        self.end_item(Status::Completed, events);
        match event {
            McpEvent::Listed { label, tools } => self.listed(label, tools, events),
            McpEvent::Approved { request, call, result } => self.approved(&request, &call, &result, events),
            McpEvent::Calling => {}
            McpEvent::Called(result) => {
                if let Some(index) = self.calling.pop_front() {
                    self.called(index, &result, events);
                }
            }
        }
    }

    fn listed(&mut self, label: String, tools: Result<Vec<mlx_mcp::Tool>, String>, events: &mut Vec<Bytes>) {
        let (index, id) = self.next_id("mcpl");
        let tool = |tool: mlx_mcp::Tool| {
            json!({
                "name": tool.name, "description": tool.description, "input_schema": tool.schema, "annotations": tool.annotations,
            })
        };
        let error = tools.as_ref().err().cloned();
        let tools: Vec<mlx_json::Value> =
            tools.into_iter().flatten().map(|it| mlx_json::Value::from(tool(it))).collect();
        let new = OutputItem::McpListTools {
            id: id.clone(),
            server_label: label.clone(),
            tools: Vec::new(),
            error: None,
        };
        self.added(index, &new, events);
        self.state_event("response.mcp_list_tools.in_progress", index, &id, events);
        let end = if error.is_some() { "failed" } else { "completed" };
        let item = OutputItem::McpListTools { id: id.clone(), server_label: label, tools, error };
        self.response.output.push(item);
        self.state_event(&format!("response.mcp_list_tools.{end}"), index, &id, events);
        self.done(index, events);
    }

    fn approved(&mut self, request: &str, call: &McpCall, result: &CallResult, events: &mut Vec<Bytes>) {
        let (index, id) = self.next_id("mcp");
        let item = |status, arguments| OutputItem::McpCall {
            id: id.clone(),
            status,
            server_label: call.label.clone(),
            name: call.name.clone(),
            arguments,
            output: None,
            output_parts: Vec::new(),
            error: None,
            approval_request_id: Some(request.to_owned()),
        };
        self.added(index, &item(CallStatus::InProgress, String::new()), events);
        self.state_event("response.mcp_call.in_progress", index, &id, events);
        let fields = json!({"output_index": index, "item_id": id, "arguments": call.arguments});
        events.push(self.event("response.mcp_call_arguments.done", &fields));
        self.response.output.push(item(CallStatus::Calling, call.arguments.clone()));
        self.called(index, result, events);
    }

    /// Completes the call at this index of the output.
    fn called(&mut self, index: usize, result: &CallResult, events: &mut Vec<Bytes>) {
        let item = self.response.output.get_mut(index);
        let Some(OutputItem::McpCall { id, status, output, output_parts, error, .. }) = item else { return };
        let id = id.clone();
        *status = CallStatus::Failed;
        match result {
            CallResult::Output(parts) => {
                (*status, *output) = (CallStatus::Completed, Some(output_text(parts, "[a picture]")));
                if result.has_pictures() {
                    *output_parts = parts.iter().map(part_json).collect();
                }
            }
            CallResult::ToolError(text) => *error = Some(tool_error(text).into()),
            CallResult::Failure(reason) => *error = Some(failure(reason).into()),
        }
        let end = if matches!(result, CallResult::Output(_)) { "completed" } else { "failed" };
        self.state_event(&format!("response.mcp_call.{end}"), index, &id, events);
        self.done(index, events);
    }

    /// Returns the index and the id of the next item.
    fn next_id(&self, prefix: &str) -> (usize, String) {
        let index = self.response.output.len();
        (index, self.item_id(prefix, index))
    }

    fn added(&mut self, index: usize, item: &OutputItem, events: &mut Vec<Bytes>) {
        let fields = json!({"output_index": index, "item": event::json(item)});
        events.push(self.event("response.output_item.added", &fields));
    }

    fn done(&mut self, index: usize, events: &mut Vec<Bytes>) {
        let item = self.response.output.get(index).map_or(Value::Null, event::json);
        events.push(self.event("response.output_item.done", &json!({"output_index": index, "item": item})));
    }

    fn state_event(&mut self, kind: &str, index: usize, id: &str, events: &mut Vec<Bytes>) {
        events.push(self.event(kind, &json!({"output_index": index, "item_id": id})));
    }
}

/// Returns a part in the form of `function_call_output`.
fn part_json(part: &Part) -> mlx_json::Value {
    let json = match part.image().and_then(data_url) {
        Some(url) => json!({"type": "input_image", "image_url": url}),
        None => json!({"type": "input_text", "text": part.text().unwrap_or_default()}),
    };
    json.into()
}

fn tool_error(text: &str) -> Value {
    json!({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]})
}

fn failure(reason: &str) -> Value {
    // JSON-RPC's code of an internal error.
    json!({"type": "mcp_protocol_error", "code": -32603, "message": reason})
}
