//! The MCP servers of a response: their tools, and the calls that this server runs.

use std::collections::HashMap;
use std::sync::Arc;

use mlx_mcp::{Server, ServerConfig, Tool, Toolset, Transport};
use serde_json::{Map, Value};

use super::chat::ResultReader;
use crate::delta::{CallResult, McpCall, McpEvent};
use crate::error::ApiError;
use crate::protocol::mcp::message_parts;
use crate::protocol::responses::item::Item;
use crate::protocol::responses::mcp_item::McpItem;
use crate::protocol::responses::mcp_tool::{Address, McpSpec};
use crate::protocol::responses::tools::RequestTools;
use crate::state::AppState;

/// The servers that a request uses, by name.
pub(super) struct Servers(HashMap<String, Arc<Server>>);

impl Servers {
    /// Adds the tools of the servers to those of the request. Returns the servers, and an event for each list that the conversation does not have.
    pub(super) async fn open(
        state: &AppState,
        tools: &mut RequestTools,
        items: &[Item],
    ) -> Result<(Self, Vec<McpEvent>), ApiError> {
        let set = state.mcp.tools().await;
        let (mut servers, mut events, mut offers) = (HashMap::new(), Vec::new(), Vec::new());
        let specs = tools.mcp.clone();
        for spec in &specs {
            let (server, listed) = match &spec.address {
                Some(address) => named_by_url(state, spec, address).await?,
                None => find(&set, spec)?,
            };
            servers.insert(spec.label.clone(), server);
            if let Ok(tools) = &listed {
                spec.check_names(&tools.iter().collect::<Vec<_>>())?;
            }
            let listed =
                listed.map(|tools| tools.into_iter().filter(|tool| spec.allows(tool)).collect::<Vec<_>>());
            let is_list =
                |item: &Item| matches!(item, Item::Mcp(McpItem::Tools { label }) if *label == spec.label);
            if !items.iter().any(is_list) {
                events.push(McpEvent::Listed { label: spec.label.clone(), tools: listed.clone() });
            }
            offers.extend(listed.into_iter().flatten().map(|tool| {
                let needs_approval = spec.needs_approval(&tool);
                (spec.label.as_str(), tool, needs_approval)
            }));
        }
        tools.add_mcp(&offers)?;
        Ok((Self(servers), events))
    }

    /// Runs calls that the client has approved, and adds them to the conversation.
    pub(super) async fn run_approved(
        &self,
        state: &AppState,
        calls: Vec<(String, McpCall)>,
        items: &mut Vec<Item>,
        reader: &ResultReader<'_>,
    ) -> Vec<McpEvent> {
        let mut events = Vec::new();
        for (request, call) in calls {
            let result = reader.readable(items, &call, self.call(state, &call).await).await;
            items.push(Item::Mcp(McpItem::Call {
                call: call.clone(),
                result: result.clone(),
                request: Some(request.clone()),
            }));
            events.push(McpEvent::Approved { request, call, result });
        }
        events
    }

    /// Runs a call.
    pub(super) async fn call(&self, state: &AppState, call: &McpCall) -> CallResult {
        let Some(server) = self.0.get(&call.label) else {
            return CallResult::Failure(format!("there is no MCP server {:?}", call.label));
        };
        let text = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
        let Ok(arguments) = serde_json::from_str::<Map<String, Value>>(text) else {
            return CallResult::Failure("its arguments are not a JSON object".to_owned());
        };
        match state.mcp.call(server, &call.name, arguments, &state.shutdown.forced).await {
            Ok(output) if output.is_error => CallResult::ToolError(output.text()),
            Ok(output) => CallResult::Output(message_parts(output, state.max_result_pictures())),
            Err(error) => CallResult::Failure(error.message()),
        }
    }
}

/// A server with its tools, or the reason that it has none.
type Listed = (Arc<Server>, Result<Vec<Tool>, String>);

/// Returns a server of `--mcp`.
fn find(set: &Toolset, spec: &McpSpec) -> Result<Listed, ApiError> {
    let found = set.servers.iter().find(|(server, _)| server.label() == spec.label);
    let (server, listed) = found.ok_or_else(|| {
        let known: Vec<&str> = set.servers.iter().map(|(server, _)| server.label()).collect();
        let known = if known.is_empty() {
            "start the server with --mcp FILE".to_owned()
        } else {
            format!("there are: {}", known.join(", "))
        };
        let message = format!("is {:?}, which is not an MCP server of this server; {known}", spec.label);
        ApiError::field(format!("{}.server_label", spec.path), message)
    })?;
    let own = set.tools.iter().filter(|tool| Arc::ptr_eq(&tool.server, server));
    let own: Vec<Tool> = own.map(|named| named.tool.clone()).collect();
    Ok((Arc::clone(server), listed.as_ref().map(|_| own).map_err(Clone::clone)))
}

/// Returns a server that the request names by its URL, for this response.
async fn named_by_url(state: &AppState, spec: &McpSpec, address: &Address) -> Result<Listed, ApiError> {
    let url = state.config.tools.allowed_url(&address.url).ok_or_else(|| {
        let message = "is not on a host that this server uses; start the server with --allow-mcp-urls HOST, or add the MCP server to the file of --mcp";
        ApiError::unsupported(format!("{}.server_url", spec.path), message)
    })?;
    let headers = address.headers.clone();
    let (label, transport) = (spec.label.clone(), Transport::Http { url, headers });
    let config = ServerConfig { label, address: address.url.clone(), transport };
    let server = Arc::new(Server::new(config, state.config.tools.time_limits()));
    let tools = server.tools().await;
    Ok((server, tools))
}

/// Returns the approved calls that have not run, with the ids of their requests. Rejects calls of tools that the request does not have.
pub(super) fn approved(tools: &RequestTools, items: &[Item]) -> Result<Vec<(String, McpCall)>, ApiError> {
    let mut calls: Vec<(String, McpCall)> = Vec::new();
    for item in items {
        let Item::Mcp(McpItem::Response { request, approves, .. }) = item else { continue };
        let call = items.iter().find_map(|item| match item {
            Item::Mcp(McpItem::Request { id, call }) if id == request => Some(call.clone()),
            _ => None,
        });
        let call = call.ok_or_else(|| {
            let message =
                format!("answers {request:?}, which is not a request for an approval of this conversation");
            ApiError::field("input", message)
        })?;
        let has_run =
            |item: &Item| matches!(item, Item::Mcp(McpItem::Call { request: Some(id), .. }) if id == request);
        if *approves && !items.iter().any(has_run) && calls.iter().all(|(id, _)| id != request) {
            if !tools.offers(&call.label, &call.name) {
                let message = format!(
                    "approves a call of {:?} of the MCP server {:?}, which is not among the tools of this request",
                    call.name, call.label
                );
                return Err(ApiError::field("input", message));
            }
            calls.push((request.clone(), call));
        }
    }
    Ok(calls)
}
