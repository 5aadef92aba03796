//! The item of a response in progress.

use super::super::custom_tool::custom_input;
use super::super::object::{CallStatus, OutputItem, OutputPart, Status};
use super::super::tools::{ClientTool, ToolKind};
use crate::protocol::openai::logprobs::ChatLogprob;

/// The item in progress.
pub(super) struct OpenItem {
    pub(super) id: String,
    pub(super) kind: Kind,
    /// The text so far.
    pub(super) text: String,
    pub(super) logprobs: Vec<ChatLogprob>,
}

pub(super) enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, client_tool: ClientTool },
}

impl Kind {
    /// Returns true if the item has a content part.
    pub(super) fn has_part(&self) -> bool {
        !matches!(self, Self::Call { .. })
    }
}

impl OpenItem {
    /// Returns the kind of the called tool. `None` if the item is no call.
    pub(super) fn tool_kind(&self) -> Option<&ToolKind> {
        match &self.kind {
            Kind::Call { client_tool, .. } => Some(&client_tool.kind),
            Kind::Reasoning | Kind::Message => None,
        }
    }

    /// Returns the content part. Calls have none.
    pub(super) fn part(&self) -> Option<OutputPart> {
        match self.kind {
            Kind::Reasoning => Some(OutputPart::ReasoningText { text: self.text.clone() }),
            Kind::Message => Some(OutputPart::text(self.text.clone(), self.logprobs.clone())),
            Kind::Call { .. } => None,
        }
    }

    /// Returns the item. A new item has no content.
    pub(super) fn item(&self, status: Status) -> OutputItem {
        let id = self.id.clone();
        let is_new = status == Status::InProgress;
        let content: Vec<OutputPart> = if is_new { Vec::new() } else { self.part().into_iter().collect() };
        match &self.kind {
            Kind::Reasoning => {
                OutputItem::Reasoning { id, summary: Vec::new(), content, encrypted_content: None, status }
            }
            Kind::Message => OutputItem::Message { id, status, role: "assistant", content },
            Kind::Call { call_id, client_tool } => self.call(id, call_id.clone(), client_tool, status),
        }
    }

    fn call(&self, id: String, call_id: String, tool: &ClientTool, status: Status) -> OutputItem {
        let (name, namespace, arguments) = (tool.name.clone(), tool.namespace.clone(), self.text.clone());
        match &tool.kind {
            ToolKind::Function => {
                OutputItem::FunctionCall { id, status, arguments, call_id, name, namespace }
            }
            ToolKind::Custom => {
                let input =
                    if status == Status::InProgress { String::new() } else { custom_input(&arguments) };
                OutputItem::CustomToolCall { id, status, call_id, name, namespace, input }
            }
            ToolKind::Mcp { label, needs_approval: true } => {
                OutputItem::McpApprovalRequest { id, server_label: label.clone(), name, arguments }
            }
            ToolKind::Mcp { label, needs_approval: false } => OutputItem::McpCall {
                id,
                status: match status {
                    Status::InProgress => CallStatus::InProgress,
                    Status::Completed => CallStatus::Calling,
                    Status::Incomplete | Status::Failed | Status::Cancelled => CallStatus::Incomplete,
                },
                server_label: label.clone(),
                name,
                arguments,
                output: None,
                output_parts: Vec::new(),
                error: None,
                approval_request_id: None,
            },
        }
    }
}
