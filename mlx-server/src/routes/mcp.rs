//! `/v1/mcp/tools` and `/v1/mcp/call`: the tools of MCP servers, for the page.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use mlx_mcp::NamedTool;

use super::body::read;
use super::response::json;
use crate::caller::Caller;
use crate::error::{ApiError, ErrorResponse};
use crate::protocol::mcp::{McpCallRequest, McpResult, McpToolList};
use crate::state::AppState;

/// Lists the tools of the MCP servers. The first request waits until each server has started or failed.
#[utoipa::path(
    get, path = "/v1/mcp/tools", tag = "tools",
    responses((status = 200, body = McpToolList), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn tools(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    Caller::from_request(&request).check(&state)?;
    Ok(json(McpToolList::new(&*state.mcp.tools().await)))
}

/// Calls a tool of an MCP server, without a further question. Closing the connection cancels the call.
#[utoipa::path(
    post, path = "/v1/mcp/call", tag = "tools",
    request_body = McpCallRequest,
    responses((status = 200, body = McpResult), (status = "4XX", body = ErrorResponse), (status = "5XX", body = ErrorResponse))
)]
pub(crate) async fn call(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    Caller::from_request(&request).check(&state)?;
    let (McpCallRequest { server, tool, arguments }, _guard) =
        read(&state, request, McpCallRequest::read).await?;
    let set = state.mcp.tools().await;
    // Unique names depend on the other servers of the file. A call names what its user has approved.
    let is_it = |it: &&NamedTool| it.server.label() == server && it.tool.name == tool;
    let Some(tool) = set.tools.iter().find(is_it) else {
        let message =
            format!("{tool:?} is not a tool of an MCP server {server:?}; GET /v1/mcp/tools lists them");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "tool_not_found", message).with_field("tool"));
    };
    let arguments = arguments.into_iter().map(|(name, value)| (name, value.into())).collect();
    let output = state.mcp.call(&tool.server, &tool.tool.name, arguments, &state.shutdown.forced).await?;
    Ok(json(McpResult::new(output, state.max_result_pictures())))
}
