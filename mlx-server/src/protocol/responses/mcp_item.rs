//! The items of MCP servers in a conversation.

use chat_format::Part;
use mlx_json::Value;

use super::mcp_tool::object_text;
use super::part::content;
use crate::delta::{CallResult, McpCall};
use crate::error::ApiError;
use crate::fields::Fields;

/// An item of an MCP server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum McpItem {
    /// The list of the tools of this server. It is not shown to the model.
    Tools { label: String },
    /// A call with its result.
    Call { call: McpCall, result: CallResult, request: Option<String> },
    /// A call that waits for an approval, with its id.
    Request { id: String, call: McpCall },
    /// The answer to a request.
    Response { request: String, approves: bool, reason: Option<String> },
}

impl McpItem {
    /// Reads an item of an MCP server. `None` for other types.
    pub(super) fn read(kind: &str, id: Option<&str>, fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let item = match kind {
            "mcp_list_tools" => {
                fields.take::<Vec<Value>>("tools")?;
                fields.value("error");
                Self::Tools { label: required(fields, "server_label")? }
            }
            "mcp_call" => {
                let call = call(fields)?;
                let request = fields.take("approval_request_id")?;
                let output: Option<String> = fields.take("output")?;
                let error = fields.value("error");
                let path = fields.name("output_parts");
                let parts =
                    fields.value("output_parts").map(|parts| content(Some(parts), &path)).transpose()?;
                let output = parts.or(output.map(|text| vec![Part::Text(text)]));
                let result = match (output, error) {
                    (_, Some(error)) if error["type"] == "mcp_tool_execution_error" => {
                        CallResult::ToolError(object_text(&error))
                    }
                    (_, Some(error)) => CallResult::Failure(object_text(&error)),
                    (Some(output), None) => CallResult::Output(output),
                    (None, None) => CallResult::Failure("it has no result".to_owned()),
                };
                Self::Call { call, result, request }
            }
            "mcp_approval_request" => {
                let id = id.ok_or_else(|| ApiError::field(fields.name("id"), "is missing; give a string"))?;
                Self::Request { id: id.to_owned(), call: call(fields)? }
            }
            "mcp_approval_response" => {
                let approves: Option<bool> = fields.take("approve")?;
                let approves =
                    approves.ok_or_else(|| ApiError::field(fields.name("approve"), "is missing"))?;
                // A field of OpenAI's schema that its examples do not have.
                fields.value("request_id");
                Self::Response {
                    request: required(fields, "approval_request_id")?,
                    approves,
                    reason: fields.take("reason")?,
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(item))
    }
}

fn call(fields: &mut Fields) -> Result<McpCall, ApiError> {
    Ok(McpCall {
        label: required(fields, "server_label")?,
        name: required(fields, "name")?,
        arguments: required(fields, "arguments")?,
    })
}

fn required(fields: &mut Fields, field: &str) -> Result<String, ApiError> {
    let value = fields.take(field)?;
    value.ok_or_else(|| ApiError::field(fields.name(field), "is missing; give a string"))
}
