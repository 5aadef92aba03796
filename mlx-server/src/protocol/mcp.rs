//! Tools of MCP servers, as the page uses them.

use chat_format::{Image, Part};
use mlx_json::{Map, Value};
use mlx_mcp::{NamedTool, Output, Toolset};
use serde::Serialize;
use serde_json::json;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::content::joined;
use super::image::data_url;
use super::openai::schema::merged;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};

/// The tools of all servers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct McpToolList {
    /// Always `list`.
    object: &'static str,
    /// The tools.
    data: Vec<McpTool>,
    /// The servers.
    servers: Vec<McpServer>,
}

/// A tool of a server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct McpTool {
    /// A unique name for models: that on the server, or with the server as a prefix if two tools share it.
    name: String,
    /// The name of its server in the file of `--mcp`.
    server: String,
    /// Its name on the server.
    tool: String,
    /// The description by the server.
    description: String,
    /// The JSON schema of the arguments.
    #[schema(value_type = Object)]
    parameters: serde_json::Value,
    /// Hints of the server, such as `readOnlyHint`.
    #[schema(value_type = Option<Object>)]
    annotations: Option<serde_json::Value>,
}

/// A server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct McpServer {
    /// Its name in the file of `--mcp`.
    name: String,
    /// The number of its tools.
    tools: usize,
    /// The reason that it cannot be used.
    error: Option<String>,
}

impl McpToolList {
    /// Lists tools.
    pub(crate) fn new(set: &Toolset) -> Self {
        let tool = |it: &NamedTool| McpTool {
            name: it.name.clone(),
            server: it.server.label().to_owned(),
            tool: it.tool.name.clone(),
            description: it.tool.description.clone(),
            parameters: it.tool.schema.clone(),
            annotations: it.tool.annotations.clone(),
        };
        let servers = set.servers.iter().map(|(server, tools)| McpServer {
            name: server.label().to_owned(),
            tools: tools.as_ref().map_or(0, |count| *count),
            error: tools.as_ref().err().cloned(),
        });
        Self { object: "list", data: set.tools.iter().map(tool).collect(), servers: servers.collect() }
    }
}

field_group! {
    /// A call of a tool.
    pub(crate) struct McpCallFields {
        /// The name of the server in the file of `--mcp`.
        #[schema(example = "files")]
        pub(crate) server: String,
        /// The name of the tool on that server.
        #[schema(example = "read_file")]
        pub(crate) tool: String,
        /// The arguments.
        #[schema(value_type = Object, example = json!({"path": "plan.md"}))]
        pub(crate) arguments: Map<String, Value>,
    }
}

/// A parsed call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct McpCallRequest {
    pub(crate) server: String,
    pub(crate) tool: String,
    pub(crate) arguments: Map<String, Value>,
}

impl McpCallRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let McpCallFields { server, tool, arguments } = McpCallFields::read(fields)?;
        let missing = |field| ApiError::field(field, "is missing; GET /v1/mcp/tools lists the tools");
        let server = server.ok_or_else(|| missing("server"))?;
        let tool = tool.ok_or_else(|| missing("tool"))?;
        Ok(Self { server, tool, arguments: arguments.unwrap_or_default() })
    }
}

impl PartialSchema for McpCallRequest {
    fn schema() -> RefOr<Schema> {
        merged([McpCallFields::schema()], &[]).build(&["server", "tool"])
    }
}

impl ToSchema for McpCallRequest {}

/// The result of a call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct McpResult {
    /// The parts of the result, in the form of a chat message: `text`, and `image_url` with a data URL.
    #[schema(value_type = Vec<Object>)]
    content: Vec<serde_json::Value>,
    /// True if the server reports a failure.
    is_error: bool,
}

impl McpResult {
    /// Returns the result in the form of a chat message. Pictures of more than `max_len` bytes together are left out.
    pub(crate) fn new(output: Output, max_len: usize) -> Self {
        let is_error = output.is_error;
        let part = |part: &Part| match part.image().and_then(data_url) {
            Some(url) => json!({"type": "image_url", "image_url": {"url": url}}),
            None => json!({"type": "text", "text": part.text().unwrap_or_default()}),
        };
        let content = message_parts(output, max_len).iter().map(part).collect();
        Self { content, is_error }
    }
}

/// Returns a result as the parts of a message. Pictures of more than `max_len` bytes together are left out.
pub(crate) fn message_parts(output: Output, max_len: usize) -> Vec<Part> {
    let mut room = max_len;
    let part = |part| match part {
        mlx_mcp::Part::Text(content) => Part::Text(content),
        mlx_mcp::Part::Picture(bytes) => {
            let len = bytes.len();
            let left_out = |reason| Part::Text(format!("[a picture of {len} bytes was left out: {reason}]"));
            match (Image::is_file(&bytes), room.checked_sub(len)) {
                (true, Some(left)) => {
                    room = left;
                    Part::Image(Image::file(bytes))
                }
                (true, None) => left_out("it is too large"),
                (false, _) => left_out("its format is unknown"),
            }
        }
    };
    joined(output.parts.into_iter().map(part).collect())
}
