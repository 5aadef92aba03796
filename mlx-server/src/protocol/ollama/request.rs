//! The requests of `POST /api/chat` and `POST /api/generate`.

use chat_format::{ConstraintSpec, Grammar, Message, Thinking, check_calls};
use mlx_core::chat::ContextPolicy;
use mlx_core::engine::RequestOptions;
use mlx_core::sampling::SamplingDefaults;
use mlx_json::{Map, Value};
use serde_json::json;
use utoipa::PartialSchema;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use super::options::{self, Options};
use crate::chat_request::{ChatRequest, Conversation, GenerationSpec, ThinkingRequest};
use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::models::KeepAlive;
use crate::protocol::openai::schema::{Fixed, merged};
use crate::protocol::openai::tools;
use crate::request_log::RequestId;

field_group! {
    /// The fields that both endpoints share.
    pub(crate) struct OllamaFields {
        /// The model's name. By default, the server's first model. A trailing `:latest` is ignored.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// `json`, or a JSON schema for the answer.
        #[schema(value_type = Object, example = "json")]
        pub(crate) format: Value,
        /// Sampling parameters and length limits, by Ollama's names.
        #[schema(value_type = Object, example = json!({"temperature": 0.5}))]
        pub(crate) options: Value,
        /// True (the default) streams the answer as JSON lines.
        #[schema(example = false)]
        pub(crate) stream: bool,
        /// The requested thinking: a boolean, or low, medium or high.
        #[schema(value_type = String, example = "low")]
        pub(crate) think: Value,
        /// Time without a request after which the model is unloaded: seconds, or a duration such as 5m. 0 unloads it after this request, -1 keeps
        /// it.
        #[schema(value_type = String, example = "5m")]
        pub(crate) keep_alive: KeepAlive,
        /// True (the default) drops the oldest turns of a conversation that exceeds the context.
        #[schema(example = false)]
        pub(crate) truncate: bool,
    }
}

field_group! {
    /// The fields of a chat.
    pub(crate) struct OllamaChatFields {
        /// The conversation so far.
        #[schema(value_type = Vec<Object>, example = json!([{"role": "user", "content": "Why is the sky blue?"}]))]
        pub(crate) messages: Value,
        /// The functions that the model may call.
        #[schema(value_type = Vec<Object>, example = json!([{"type": "function", "function": {"name": "add"}}]))]
        pub(crate) tools: Value,
    }
}

field_group! {
    /// The fields of a generation from a prompt.
    pub(crate) struct OllamaTextFields {
        /// The user's message. Without it, the request only loads the model.
        #[schema(example = "Once upon a time")]
        pub(crate) prompt: String,
        /// The system prompt.
        #[schema(example = "Be brief.")]
        pub(crate) system: String,
        /// Images for the prompt: base64 of png, jpeg, webp or gif files.
        #[schema(value_type = Vec<String>, example = json!(["AQID"]))]
        pub(crate) images: Vec<String>,
    }
}

/// A parsed chat.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OllamaChatRequest(pub(crate) ChatRequest, pub(crate) Option<KeepAlive>);

/// A parsed generation request, as a chat of one message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OllamaGenerateRequest(pub(crate) ChatRequest, pub(crate) Option<KeepAlive>);

impl OllamaChatRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = OllamaChatFields::read(fields)?;
        let messages = super::message::read(given.messages)?;
        check_calls(&messages).map_err(|mistake| {
            ApiError::field(format!("messages[{}].{}", mistake.message, mistake.field), mistake.why)
        })?;
        shared(fields, messages, given.tools).map(|(chat, keep_alive)| Self(chat, keep_alive))
    }
}

impl OllamaGenerateRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = OllamaTextFields::read(fields)?;
        fields.expect_one_of("raw", &[json!(false)], "use /v1/completions for prompts without a template")?;
        fields.expect_one_of(
            "suffix",
            &[json!("")],
            "this server has no fill-in-the-middle; leave it out",
        )?;
        fields.expect_one_of("template", &[json!("")], "the model's own template is used")?;
        let images = super::message::images(given.images, "images")?;
        fields.expect_one_of("context", &[json!([])], "use /api/chat with the conversation so far")?;
        let prompt = given.prompt.filter(|prompt| !prompt.is_empty());
        if prompt.is_none() && !images.is_empty() {
            return Err(ApiError::field("images", "may only be given with a prompt"));
        }
        let system = given.system.filter(|text| !text.is_empty()).map(Message::system);
        if prompt.is_none() && system.is_some() {
            return Err(ApiError::field("system", "may only be given with a prompt"));
        }
        let prompt = prompt.map(|text| Message::user_with(images, text));
        // Without a prompt, the request only loads the model.
        let messages = system.into_iter().chain(prompt).collect();
        shared(fields, messages, None).map(|(chat, keep_alive)| Self(chat, keep_alive))
    }
}

fn shared(
    fields: &mut Fields,
    messages: Vec<Message>,
    list: Option<Value>,
) -> Result<(ChatRequest, Option<KeepAlive>), ApiError> {
    let given = OllamaFields::read(fields)?;
    fields.expect_one_of("logprobs", &[json!(false)], "use /v1/chat/completions")?;
    fields.expect_one_of("top_logprobs", &[json!(0)], "use /v1/chat/completions")?;
    // A full context always ends the answer.
    fields.take_unused("shift", &[json!(false)]);
    let Options { sampling, max_tokens, stop, given: given_options, unused } = options::read(given.options)?;
    fields.add_unused(unused);
    let constraint = given.format.map(constraint).transpose()?.flatten();
    let tools = tools::read_list(list)?;
    let thinking = given.think.map_or(Ok(ThinkingRequest::default()), thinking)?;
    let constraint_field = constraint.as_ref().map(|_| "format");
    let spec = GenerationSpec {
        model: given.model.map(|name| name.strip_suffix(":latest").map_or(name.clone(), str::to_owned)),
        options: RequestOptions {
            sampling,
            sampling_defaults: SamplingDefaults::Ollama,
            max_tokens,
            stop,
            constraint,
            ..RequestOptions::default()
        },
        given: given_options,
        profile: None,
        constraint_field,
        choices: 1,
        is_streamed: given.stream.unwrap_or(true),
        user: None,
        request_id: RequestId::default(),
    };
    let conversation = Conversation { messages, variables: Map::new(), tools, thinking };
    let policy = if given.truncate == Some(false) { ContextPolicy::Stop } else { ContextPolicy::EvictTurns };
    let (limit_name, gives_policy) = ("options.num_predict", given.truncate.is_some());
    Ok((ChatRequest { spec, conversation, limit_name, policy, gives_policy }, given.keep_alive))
}

fn constraint(format: Value) -> Result<Option<ConstraintSpec>, ApiError> {
    match format {
        Value::String(name) if name.is_empty() => Ok(None),
        Value::String(name) if name == "json" => {
            Ok(Some(Grammar::JsonSchema(json!({"type": "object"})).into()))
        }
        schema @ Value::Object(_) => Ok(Some(Grammar::JsonSchema(schema.into()).into())),
        _ => Err(ApiError::field("format", "must be json or a JSON schema")),
    }
}

fn thinking(think: Value) -> Result<ThinkingRequest, ApiError> {
    match think {
        Value::Bool(is_on) => {
            let thinking = if is_on { Thinking::On } else { Thinking::Off };
            // Every model accepts false: a model without thinking does not think anyway.
            let field = is_on.then_some("think");
            Ok(ThinkingRequest { thinking, field, is_given: true, ..ThinkingRequest::default() })
        }
        Value::String(effort) => ThinkingRequest::required_effort(Some(&effort), "think"),
        _ => Err(ApiError::field("think", "must be a boolean, or low, medium or high")),
    }
}

/// Returns the schema of a request with the fields of `specific` and the shared fields.
fn schema(specific: RefOr<Schema>, neutral: &[Fixed], required: &[&str]) -> RefOr<Schema> {
    merged([specific, OllamaFields::schema()], neutral).build(required)
}

impl PartialSchema for OllamaChatRequest {
    fn schema() -> RefOr<Schema> {
        schema(OllamaChatFields::schema(), &[], &["messages"])
    }
}

impl ToSchema for OllamaChatRequest {}

impl PartialSchema for OllamaGenerateRequest {
    fn schema() -> RefOr<Schema> {
        schema(
            OllamaTextFields::schema(),
            &[("raw", vec![json!(false)], "Use /v1/completions for prompts without a template.")],
            &[],
        )
    }
}

impl ToSchema for OllamaGenerateRequest {}
