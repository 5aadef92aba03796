//! The requests of `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use mlx_core::chat::ContextPolicy;
use mlx_core::engine::RequestOptions;
use mlx_core::sampling::SamplingOptions;
use mlx_json::{Map, Value};
use serde_json::json;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::error::threads_unsupported;
use super::message::{self, InputMessage};
use super::thinking::{self, Display, ThinkingFields};
use super::tools::{self, ToolDefinition, ToolFields};
use crate::chat_request::{ChatRequest, Conversation, GenerationSpec, GivenOptions};
use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::protocol::openai::schema::{merged, register};
use crate::request_log::RequestId;

field_group! {
    /// The fields of the prompt.
    pub(crate) struct PromptFields {
        /// The model's name. By default, the server's first model.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// Instructions for the whole conversation: a string, or a list of blocks of type text.
        #[schema(value_type = String, example = "Answer briefly.")]
        pub(crate) system: Value,
    }
}

field_group! {
    /// Generation options.
    pub(crate) struct GenerationFields {
        /// Maximum number of generated tokens. Clamped to the remaining context.
        #[schema(minimum = 1, example = 5)]
        pub(crate) max_tokens: usize,
        /// Stop strings. The text ends before the first one that is generated.
        #[schema(example = json!(["END"]))]
        pub(crate) stop_sequences: Vec<String>,
        /// Stream the answer as server-sent events.
        #[schema(example = true)]
        pub(crate) stream: bool,
        /// Sampling temperature; 0 always takes the most likely token.
        #[schema(minimum = 0, example = 0.5)]
        pub(crate) temperature: f32,
        /// Sample from the smallest set of tokens with at least this total probability.
        #[schema(minimum = 0, maximum = 1, example = 0.9)]
        pub(crate) top_p: f32,
        /// Sample from this many of the most likely tokens; 0 disables the limit.
        #[schema(example = 40)]
        pub(crate) top_k: u32,
        /// Older name of `output_config.format`.
        #[schema(value_type = Object)]
        pub(crate) output_format: Value,
    }
}

field_group! {
    /// Hints without effect on the answer. They are accepted, not used, and listed in `x-ignored-fields`.
    pub(crate) struct IgnoredMessagesFields {
        /// Not used: nothing is stored.
        #[schema(value_type = Object)]
        pub(crate) metadata: Value,
        /// Not used: prefix caching is automatic.
        #[schema(value_type = Object)]
        pub(crate) cache_control: Value,
        /// Not used: there is one tier.
        #[schema(value_type = String, example = "priority")]
        pub(crate) service_tier: Value,
        /// Not used: there is one speed.
        #[schema(value_type = String, example = "fast")]
        pub(crate) speed: Value,
        /// Not used: everything is computed here.
        #[schema(value_type = String, example = "us")]
        pub(crate) inference_geo: Value,
        /// Not used: nothing is removed from conversations.
        #[schema(value_type = Object)]
        pub(crate) context_management: Value,
    }
}

/// A parsed request for a message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MessagesRequest {
    /// The chat to answer.
    pub(crate) chat: ChatRequest,
    /// The display of thinking.
    pub(crate) display: Display,
}

/// A parsed request for the length of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MessagesCountRequest {
    /// The model's name.
    pub(crate) model: Option<String>,
    /// The conversation.
    pub(crate) conversation: Conversation,
}

impl MessagesRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = GenerationFields::read(fields)?;
        let max_tokens = given.max_tokens.ok_or_else(|| ApiError::field("max_tokens", "is missing"))?;
        if max_tokens == 0 {
            return Err(ApiError::field("max_tokens", "is 0; it must be at least 1"));
        }
        let read = ParsedPrompt::read(fields)?;
        let sampling = SamplingOptions {
            temperature: given.temperature,
            top_p: given.top_p,
            top_k: given.top_k,
            ..SamplingOptions::default()
        };
        let older = given.output_format.map(|format| thinking::read_format(format, "output_format"));
        let (grammar, constraint_field) = match (read.options.grammar, older.transpose()?) {
            (Some(grammar), _) => (Some(grammar), Some("output_config.format.schema")),
            (None, older) => (older, Some("output_format.schema")),
        };
        let given_options = GivenOptions { stop: given.stop_sequences.is_some(), ..GivenOptions::default() };
        let stop = given.stop_sequences.unwrap_or_default();
        let options = RequestOptions {
            sampling,
            max_tokens: Some(max_tokens),
            stop,
            constraint: grammar.map(Into::into),
            prompt_progress: given.stream == Some(true),
            ..RequestOptions::default()
        };
        let spec = GenerationSpec {
            model: read.model,
            options,
            given: given_options,
            profile: None,
            constraint_field,
            choices: 1,
            is_streamed: given.stream.unwrap_or(false),
            user: None,
            request_id: RequestId::default(),
        };
        let (conversation, policy) = (read.conversation, ContextPolicy::Stop);
        let chat = ChatRequest { spec, conversation, limit_name: "max_tokens", policy, gives_policy: false };
        Ok(Self { chat, display: read.options.display })
    }
}

impl MessagesCountRequest {
    /// Parses a request. Its fields are a subset of those of a request for a message.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let ParsedPrompt { model, conversation, .. } = ParsedPrompt::read(fields)?;
        Ok(Self { model, conversation })
    }
}

/// The fields that both requests share.
struct ParsedPrompt {
    model: Option<String>,
    conversation: Conversation,
    options: thinking::ThinkingOptions,
}

impl ParsedPrompt {
    fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        if fields.value("thread").is_some() {
            return Err(threads_unsupported());
        }
        let PromptFields { model, system } = PromptFields::read(fields)?;
        let tools = tools::read(fields)?;
        let mut options = thinking::read(fields)?;
        fields.take_unused("service_tier", &[json!("auto"), json!("standard_only")]);
        if fields.peek("context_management").is_some_and(keeps_everything) {
            fields.value("context_management");
        }
        fields.read_unused(IgnoredMessagesFields::read)?;
        let messages = message::read(system, fields.value("messages"), &tools.request.tools)?;
        fields.add_unused(tools.ignored);
        fields.add_unused(std::mem::take(&mut options.ignored));
        let (tools, thinking, variables) = (tools.request, options.thinking, Map::new());
        let conversation = Conversation { messages, variables, tools, thinking };
        Ok(Self { model, conversation, options })
    }
}

/// Returns true if `context_management` would remove nothing from the conversation.
fn keeps_everything(management: &Value) -> bool {
    let keeps = |edit: &Value| edit["keep"] == json!("all");
    management["edits"].as_array().is_none_or(|edits| edits.iter().all(keeps))
}

impl PartialSchema for MessagesRequest {
    fn schema() -> RefOr<Schema> {
        let groups = [GenerationFields::schema(), PromptFields::schema()];
        merged(groups.into_iter().chain(shared()), &[])
            .list::<InputMessage>("messages", "The conversation so far.")
            .build(&["messages", "max_tokens"])
    }
}

impl ToSchema for MessagesRequest {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        register::<InputMessage>(schemas);
        register::<ToolDefinition>(schemas);
    }
}

impl PartialSchema for MessagesCountRequest {
    fn schema() -> RefOr<Schema> {
        merged([PromptFields::schema()].into_iter().chain(shared()), &[])
            .list::<InputMessage>("messages", "The conversation so far.")
            .build(&["messages"])
    }
}

impl ToSchema for MessagesCountRequest {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        MessagesRequest::schemas(schemas);
    }
}

fn shared() -> [RefOr<Schema>; 3] {
    [ToolFields::schema(), ThinkingFields::schema(), IgnoredMessagesFields::schema()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn read(request: &Value) -> Result<MessagesRequest, ApiError> {
        MessagesRequest::read(&mut parsed(request))
    }

    fn parsed(request: &Value) -> Fields {
        Fields::parse(request.to_string().as_bytes()).expect("an object")
    }

    /// A client that sends only the end of a conversation must get an error instead of an answer to that part.
    #[test]
    fn parts_of_conversations_are_refused() {
        let thread = json!({"type": "continue", "previous_message_id": "msg_1"});
        let request =
            json!({"max_tokens": 5, "messages": [{"role": "user", "content": "On"}], "thread": thread});
        assert_eq!(read(&request).expect_err("a part").param(), Some("thread"));
    }

    #[test]
    fn fields_that_are_not_used_are_named() {
        let request = |edit: Value| {
            json!({
                "max_tokens": 5,
                "messages": [{"role": "user", "content": "On"}],
                "metadata": {"user_id": "a"},
                "service_tier": "auto",
                "context_management": {"edits": [edit]},
                "safeguards": {},
                "absent": null,
            })
        };
        let unused = |edit: Value| {
            let mut fields = parsed(&request(edit));
            MessagesRequest::read(&mut fields).expect("valid");
            fields.into_unused()
        };
        let keeps = json!({"type": "clear_thinking_20251015", "keep": "all"});
        assert_eq!(unused(keeps), ["metadata", "safeguards"], "nothing is lost");
        let clears = json!({"type": "clear_tool_uses_20250919"});
        assert_eq!(unused(clears), ["metadata", "context_management", "safeguards"]);
    }
}
