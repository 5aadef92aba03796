//! The chat of a response's items, and the check that a result of a call fits into it.

use chat_format::check_calls;
use mlx_json::Map;

use crate::chat_request::{ChatRequest, Conversation};
use crate::delta::{CallResult, McpCall};
use crate::error::ApiError;
use crate::generation::Origin;
use crate::models::Purpose;
use crate::prepare;
use crate::protocol::responses::conversation::messages;
use crate::protocol::responses::item::Item;
use crate::protocol::responses::mcp_item::McpItem;
use crate::protocol::responses::request::ResponseRequest;
use crate::request_guard::RequestGuard;
use crate::state::AppState;

/// Returns the chat of a conversation.
pub(super) fn chat_request(request: &ResponseRequest, items: &[Item]) -> Result<ChatRequest, ApiError> {
    let mcp_name = |label: &str, tool: &str| request.tools.mcp_name(label, tool);
    let messages = messages(request.instructions.as_deref(), items, &mcp_name);
    if messages.is_empty() {
        return Err(ApiError::field("input", "has no message; give a string or a list of items"));
    }
    check_calls(&messages).map_err(|mistake| {
        ApiError::field("input", mistake.why.replace("message of role tool", "function_call_output"))
    })?;
    let conversation = Conversation {
        messages,
        variables: Map::new(),
        tools: request.tools.request.clone(),
        thinking: request.thinking,
    };
    Ok(ChatRequest {
        spec: request.spec.clone(),
        conversation,
        limit_name: "max_output_tokens",
        policy: request.policy,
        gives_policy: request.gives_policy,
    })
}

/// Checks results of calls for the model of a request.
pub(super) struct ResultReader<'a> {
    pub(super) state: &'a AppState,
    pub(super) origin: &'a Origin,
    pub(super) request: &'a ResponseRequest,
}

impl ResultReader<'_> {
    /// Returns the result of a call after these items. If the prompt cannot contain its pictures, because the model or its template reads only text
    /// in results or a picture is damaged, a line of text replaces them.
    pub(super) async fn readable(&self, items: &[Item], call: &McpCall, result: CallResult) -> CallResult {
        if !result.has_pictures() {
            return result;
        }
        let (call, given) = (call.clone(), result.clone());
        let mut items = items.to_vec();
        items.push(Item::Mcp(McpItem::Call { call, result: given, request: None }));
        if self.renders(&items).await.is_ok() { result } else { result.without_pictures() }
    }

    async fn renders(&self, items: &[Item]) -> Result<(), ApiError> {
        let chat = chat_request(self.request, items)?;
        let models = &self.state.models;
        let lease = models.lease_for(Purpose::Generate, chat.spec.model.as_deref()).await?;
        let guard = RequestGuard::new(self.state, self.state.bodies.charge(), 0, self.origin.clone());
        guard.run(move |cancel| prepare::render(&lease, chat, true, cancel).map(drop)).await
    }
}
