//! The requests of `POST /v1/chat/completions` and `POST /v1/chat/render`.

use chat_format::check_calls;
use mlx_core::chat::ContextPolicy;
use mlx_json::{Map, Value};
use serde_json::json;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::OneOrMany;
use super::constraint::ConstraintFields;
use super::message::{self, Message, ToolCallObject, ToolFunction};
use super::options::{self, OutputFields, StreamOptions};
use super::sampling::SamplingFields;
use super::schema::{Fixed, merged, register};
use super::thinking::{self, ThinkingFields};
use super::tools::{self, FunctionObject, ToolFields, ToolObject};
use super::writer::OutputOptions;
use crate::chat_request::{ChatRequest, Conversation, ThinkingRequest, ToolRequest};
use crate::error::ApiError;
use crate::fields::{Fields, field_group};

/// Template variables that `chat_template_kwargs` may not set.
const RESERVED_VARIABLES: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// OpenAI's fields that support only values without effect.
fn fixed_fields() -> [Fixed; 2] {
    [
        ("modalities", vec![json!(["text"])], "use [\"text\"]"),
        ("function_call", vec![json!("none"), json!("auto")], "give tool_choice"),
    ]
}

const UNSUPPORTED_FIELDS: [(&str, &str); 3] = [
    ("functions", "give tools"),
    ("audio", "answers are text"),
    ("web_search_options", "this server has no web search"),
];

field_group! {
    /// Hints without effect on the answer. They are accepted, not used, and listed in `x-ignored-fields`.
    pub(crate) struct IgnoredFields {
        /// Not used: nothing is stored.
        #[schema(example = true)]
        pub(crate) store: bool,
        /// Not used: drafts do not use predictions; see `speculate`.
        #[schema(value_type = Object)]
        pub(crate) prediction: Value,
        /// Not used: set variables of the model's template with `chat_template_kwargs`.
        #[schema(example = "low")]
        pub(crate) verbosity: String,
        /// Not used: nothing is stored.
        #[schema(value_type = Object)]
        pub(crate) metadata: Map<String, Value>,
        /// Not used: prefix caching is automatic.
        #[schema(example = "some-key")]
        pub(crate) prompt_cache_key: String,
        /// Not used.
        #[schema(example = "someone")]
        pub(crate) safety_identifier: String,
        /// Not used: there is one tier; see `priority`.
        #[schema(example = "flex")]
        pub(crate) service_tier: String,
    }
}

field_group! {
    /// The fields that only a chat has.
    pub(crate) struct ChatFields {
        /// Newer name of `max_tokens`. If both are given, they must be equal.
        #[schema(minimum = 0, example = 6)]
        pub(crate) max_completion_tokens: usize,
        /// Return the log-probability of each token.
        #[schema(example = true)]
        pub(crate) logprobs: bool,
        /// Also return this many of the most likely tokens at each position. Requires `logprobs: true`.
        #[schema(minimum = 0, maximum = 20, example = 2)]
        pub(crate) top_logprobs: usize,
        /// Variables for the model's chat template, such as `enable_thinking`.
        #[schema(value_type = Object)]
        pub(crate) chat_template_kwargs: Map<String, Value>,
        /// Policy for conversations that exceed the context: evict-turns, slide or stop. Without it, such a conversation is
        /// rejected.
        #[schema(pattern = "^(evict-turns|slide|stop)$", example = "evict-turns")]
        pub(crate) context_policy: String,
    }
}

/// A parsed chat request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChatCompletionRequest {
    /// The chat to answer.
    pub(crate) chat: ChatRequest,
    /// The optional parts of the response.
    pub(crate) output: OutputOptions,
}

impl ChatCompletionRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let (mut spec, mut output) = options::read(fields)?;
        let chat = ChatFields::read(fields)?;
        fields.take_unused("store", &[json!(false)]);
        fields.take_unused("service_tier", &[json!("auto"), json!("default")]);
        fields.read_unused(IgnoredFields::read)?;
        let conversation = Conversation {
            tools: tools::read(fields)?,
            thinking: thinking::read(fields)?,
            ..conversation(fields, chat.chat_template_kwargs)?
        };
        check_calls(&conversation.messages).map_err(|mistake| {
            ApiError::field(format!("messages[{}].{}", mistake.message, mistake.field), mistake.why)
        })?;
        for (field, allowed, reason) in fixed_fields() {
            fields.expect_one_of(field, &allowed, reason)?;
        }
        fields.reject(&UNSUPPORTED_FIELDS)?;
        let limit_name =
            if spec.options.max_tokens.is_some() { "max_tokens" } else { "max_completion_tokens" };
        spec.options.max_tokens = match (spec.options.max_tokens, chat.max_completion_tokens) {
            (Some(old), Some(new)) if old != new => {
                let message = format!("is {new}, but max_tokens is {old}; give one of them");
                return Err(ApiError::field("max_completion_tokens", message));
            }
            (old, new) => new.or(old),
        };
        spec.given.max_tokens = spec.options.max_tokens.is_some();
        spec.options.logprobs = match (chat.logprobs.unwrap_or(false), chat.top_logprobs) {
            (true, top) => Some(top.unwrap_or(0)),
            (false, None) => None,
            (false, Some(_)) => {
                return Err(ApiError::field("top_logprobs", "may only be given with logprobs: true"));
            }
        };
        let gives_policy = chat.context_policy.is_some();
        let policy = chat.context_policy.as_deref().unwrap_or(ContextPolicy::Stop.as_str());
        let policy = policy.parse().map_err(|reason: String| ApiError::field("context_policy", reason))?;
        output.logprobs = spec.options.logprobs.is_some();
        Ok(Self { chat: ChatRequest { spec, conversation, limit_name, policy, gives_policy }, output })
    }
}

/// Returns the schema of a chat with the fields of `more`.
fn chat_schema(more: impl IntoIterator<Item = RefOr<Schema>>) -> RefOr<Schema> {
    let groups = [
        OutputFields::schema(),
        ChatFields::schema(),
        ThinkingFields::schema(),
        ToolFields::schema(),
        IgnoredFields::schema(),
        ConstraintFields::schema(),
        SamplingFields::schema(),
    ];
    let object = merged(groups.into_iter().chain(more), &fixed_fields());
    object.list::<Message>("messages", "The conversation so far.").build(&["messages"])
}

impl PartialSchema for ChatCompletionRequest {
    fn schema() -> RefOr<Schema> {
        chat_schema([])
    }
}

impl ToSchema for ChatCompletionRequest {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        register::<Message>(schemas);
        register::<ToolCallObject>(schemas);
        register::<ToolFunction>(schemas);
        register::<ToolObject>(schemas);
        register::<FunctionObject>(schemas);
        register::<OneOrMany>(schemas);
        register::<StreamOptions>(schemas);
    }
}

field_group! {
    /// The additional field of a render request.
    pub(crate) struct RenderFields {
        /// True (the default) ends the prompt where the assistant's answer starts, or within its last message.
        #[schema(example = false)]
        pub(crate) add_generation_prompt: bool,
    }
}

/// A parsed request to render the prompt of a chat.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RenderRequest {
    /// The chat.
    pub(crate) chat: ChatCompletionRequest,
    /// True to end the prompt where the answer starts.
    pub(crate) generation_prompt: bool,
}

impl RenderRequest {
    /// Parses a request: the fields of a chat, and `add_generation_prompt`.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let generation_prompt = RenderFields::read(fields)?.add_generation_prompt.unwrap_or(true);
        Ok(Self { chat: ChatCompletionRequest::read(fields)?, generation_prompt })
    }
}

impl PartialSchema for RenderRequest {
    fn schema() -> RefOr<Schema> {
        chat_schema([RenderFields::schema()])
    }
}

impl ToSchema for RenderRequest {}

fn conversation(
    fields: &mut Fields,
    variables: Option<Map<String, Value>>,
) -> Result<Conversation, ApiError> {
    let variables = variables.unwrap_or_default();
    if let Some(name) = RESERVED_VARIABLES.iter().find(|name| variables.contains_key(**name)) {
        let message = format!("must not set {name}, which the request itself defines");
        return Err(ApiError::field("chat_template_kwargs", message));
    }
    let messages = message::read(fields.value("messages"))?;
    Ok(Conversation {
        messages,
        variables,
        tools: ToolRequest::default(),
        thinking: ThinkingRequest::default(),
    })
}
