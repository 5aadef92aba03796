//! The request of `POST /v1/responses`.

use chat_format::{ConstraintSpec, Grammar};
use mlx_core::chat::ContextPolicy;
use mlx_core::engine::RequestOptions;
use mlx_core::sampling::MAX_TOP_LOGPROBS;
use mlx_json::{Map, Value};
use serde_json::json;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::item::{self, InputItem};
use super::reasoning;
use super::tools::RequestTools;
use crate::chat_request::{GenerationSpec, GivenOptions, ThinkingRequest};
use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::protocol::openai::options::{priority, speculate};
use crate::protocol::openai::sampling::{self, SamplingFields};
use crate::protocol::openai::schema::merged;
use crate::request_log::RequestId;

field_group! {
    /// A request for a response.
    pub(crate) struct ResponseFields {
        /// The model's name. By default, the server's first model.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// A string, or a list of items: messages, reasoning, calls and their results.
        #[schema(value_type = String, example = "Once upon a time")]
        pub(crate) input: Value,
        /// The system prompt of this response. Later responses do not inherit it.
        #[schema(example = "Be brief.")]
        pub(crate) instructions: String,
        /// The id of the stored response to continue.
        #[schema(example = "resp_1")]
        pub(crate) previous_response_id: String,
        /// True (the default) stores the response, so that clients can fetch and continue it.
        #[schema(example = false)]
        pub(crate) store: bool,
        /// Stream the answer as server-sent events.
        #[schema(example = true)]
        pub(crate) stream: bool,
        /// Functions, namespaces of functions, custom tools, and tools of MCP servers (`mcp`). Other tools of OpenAI are not shown to the model.
        #[schema(value_type = Vec<Object>, example = json!([{"type": "function", "name": "add"}]))]
        pub(crate) tools: Value,
        /// `auto` (the default with tools), `none`, `required`, a tool, or `allowed_tools`.
        #[schema(value_type = String, example = "none")]
        pub(crate) tool_choice: Value,
        /// True (the default) allows several calls per answer.
        #[schema(example = false)]
        pub(crate) parallel_tool_calls: bool,
        /// Maximum number of generated tokens.
        #[schema(minimum = 0, example = 5)]
        pub(crate) max_output_tokens: usize,
        /// Number of most likely tokens to return at each position. Requires `message.output_text.logprobs` in `include`.
        #[schema(minimum = 0, maximum = 20, example = 2)]
        pub(crate) top_logprobs: usize,
        /// Additional content: `message.output_text.logprobs`. `reasoning.encrypted_content` is accepted and stays null.
        #[schema(example = json!(["message.output_text.logprobs"]))]
        pub(crate) include: Vec<String>,
        /// `effort`: none, minimal, low, medium or high, as far as the model's template supports it. `max_tokens`: the maximum number of
        /// tokens in thoughts; 0 means no thoughts. `summary` is not used.
        #[schema(value_type = Object)]
        pub(crate) reasoning: Value,
        /// `format`: text, `json_object` or `json_schema`. `verbosity` is not used.
        #[schema(value_type = Object)]
        pub(crate) text: Value,
        /// `auto` drops the oldest turns of a conversation that exceeds the context; `disabled` rejects it.
        #[schema(pattern = "^(auto|disabled)$", example = "auto")]
        pub(crate) truncation: String,
        /// True to require the same bits regardless of other requests. The default is the server's `--exact`.
        #[schema(example = true)]
        pub(crate) exact: bool,
        /// The source of draft tokens, which affects only the speed: auto, off, lookup, suffix, draft or mtp. The default is the
        /// server's `--speculate`.
        #[schema(pattern = "^(auto|off|lookup|suffix|draft|mtp)$", example = "lookup")]
        pub(crate) speculate: String,
        /// The priority in the queue: low, normal or high.
        #[schema(pattern = "^(low|normal|high)$", example = "high")]
        pub(crate) priority: String,
        /// The end user. Written to the request's log line.
        #[schema(example = "someone")]
        pub(crate) user: String,
    }
}

/// Fields without effect. They are accepted, and repeated in the response if its object has them.
const IGNORED_FIELDS: [&str; 7] = [
    "prompt_cache_key",
    "safety_identifier",
    "prompt_cache_retention",
    "client_metadata",
    "stream_options",
    "prompt_cache_options",
    "context_management",
];

const UNSUPPORTED_FIELDS: [(&str, &str); 2] =
    [("conversation", "give previous_response_id or the items"), ("prompt", "this server stores no prompts")];

/// Values of `include` that are accepted but add nothing.
const EMPTY_INCLUDES: [&str; 7] = [
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
    "file_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
];
const LOGPROBS: &str = "message.output_text.logprobs";

/// A parsed request. Stored items may be missing from its conversation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ResponseRequest {
    /// The options that all kinds of generation share.
    pub(crate) spec: GenerationSpec,
    /// The new items.
    pub(crate) input: Vec<InputItem>,
    /// The system prompt.
    pub(crate) instructions: Option<String>,
    /// The id of the previous response.
    pub(crate) previous: Option<String>,
    /// True to store the response.
    pub(crate) store: bool,
    /// True to report log-probabilities.
    pub(crate) logprobs: bool,
    /// The tools.
    pub(crate) tools: RequestTools,
    /// The requested reasoning.
    pub(crate) thinking: ThinkingRequest,
    /// The policy for conversations that exceed the context.
    pub(crate) policy: ContextPolicy,
    /// True if the request gives the policy.
    pub(crate) gives_policy: bool,
    /// The fields of the request that the response repeats.
    pub(crate) echo: Map<String, Value>,
}

impl ResponseRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let mut echo = echo(fields);
        let given = ResponseFields::read(fields)?;
        let sampling = sampling::read(fields)?;
        for field in IGNORED_FIELDS {
            fields.take_unused(field, &[]);
        }
        fields.take_unused("service_tier", &[json!("auto"), json!("default")]);
        // The response repeats it.
        fields.value("metadata");
        fields.expect_one_of(
            "background",
            &[json!(false)],
            "a response is computed while the client waits; leave it out",
        )?;
        fields.reject(&UNSUPPORTED_FIELDS)?;
        let mut tools = RequestTools::read(given.tools, given.tool_choice, given.parallel_tool_calls)?;
        tools.take_max_calls(fields)?;
        let input = item::read(given.input)?;
        if input.is_empty() && given.previous_response_id.is_none() && given.instructions.is_none() {
            return Err(ApiError::field("input", "is missing; give a string or a list of items"));
        }
        let include = given.include.unwrap_or_default();
        let logprobs = logprobs(&include, given.top_logprobs)?;
        let never = include.iter().enumerate().filter(|(_, name)| EMPTY_INCLUDES.contains(&name.as_str()));
        fields.add_unused(never.map(|(index, _)| format!("include[{index}]")));
        let (thinking, reasoning) = reasoning::read(given.reasoning, fields)?;
        echo.insert("reasoning".into(), reasoning);
        let (constraint, text) = text(given.text, fields)?;
        echo.insert("text".into(), text);
        fields.add_unused(std::mem::take(&mut tools.ignored));
        let options = RequestOptions {
            sampling,
            max_tokens: given.max_output_tokens,
            priority: priority(given.priority.as_deref())?,
            exact: given.exact,
            speculate: speculate(given.speculate.as_deref())?,
            logprobs,
            constraint,
            prompt_progress: given.stream == Some(true),
            ..RequestOptions::default()
        };
        let constraint_field = options.constraint.as_ref().map(|_| SCHEMA);
        let max_tokens = options.max_tokens.is_some();
        let spec = GenerationSpec {
            model: given.model,
            given: GivenOptions { max_tokens, ..GivenOptions::default() },
            profile: None,
            options,
            constraint_field,
            choices: 1,
            is_streamed: given.stream.unwrap_or(false),
            user: given.user,
            request_id: RequestId::default(),
        };
        Ok(Self {
            spec,
            input,
            instructions: given.instructions,
            previous: given.previous_response_id,
            store: given.store.unwrap_or(true),
            logprobs: logprobs.is_some(),
            tools,
            thinking,
            policy: policy(given.truncation.as_deref())?,
            gives_policy: given.truncation.is_some(),
            echo,
        })
    }
}

impl PartialSchema for ResponseRequest {
    fn schema() -> RefOr<Schema> {
        let groups = [ResponseFields::schema(), SamplingFields::schema()];
        merged(groups, &[("background", vec![json!(false)], "Background responses are not supported.")])
            .build(&["input"])
    }
}

impl ToSchema for ResponseRequest {}

/// Returns the fields that the response repeats, with defaults for absent ones.
fn echo(fields: &Fields) -> Map<String, Value> {
    let echoed = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("max_tool_calls", Value::Null),
        ("parallel_tool_calls", true.into()),
        ("previous_response_id", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("safety_identifier", Value::Null),
        ("service_tier", "default".into()),
        ("store", true.into()),
        ("temperature", 1.into()),
        ("tool_choice", "auto".into()),
        ("tools", Vec::new().into()),
        ("top_logprobs", 0.into()),
        ("top_p", 1.into()),
        ("frequency_penalty", 0.into()),
        ("presence_penalty", 0.into()),
        ("truncation", "disabled".into()),
        ("user", Value::Null),
        ("metadata", Map::new().into()),
    ];
    let value =
        |(name, absent): (&str, Value)| (name.to_owned(), fields.peek(name).cloned().unwrap_or(absent));
    let mut echo: Map<String, Value> = echoed.into_iter().map(value).collect();
    if let Some(tools) = echo.get_mut("tools").and_then(Value::as_array_mut) {
        tools.iter_mut().for_each(complete);
    }
    echo
}

/// Adds the fields of a function that clients require in a response, and removes the secrets of an MCP server.
fn complete(tool: &mut Value) {
    if let Some(server) = tool.as_object_mut().filter(|tool| tool.get("type") == Some(&"mcp".into())) {
        server.retain(|name, _| !["authorization", "headers"].contains(&name.as_str()));
    }
    let Some(tool) = tool.as_object_mut().filter(|tool| tool.get("type") == Some(&"function".into())) else {
        return;
    };
    for (name, absent) in
        [("description", Value::Null), ("parameters", Value::Null), ("strict", false.into())]
    {
        let value = tool.entry(name.to_owned()).or_insert(absent.clone());
        if value.is_null() {
            *value = absent;
        }
    }
}

fn policy(truncation: Option<&str>) -> Result<ContextPolicy, ApiError> {
    match truncation {
        Some("auto") => Ok(ContextPolicy::EvictTurns),
        None | Some("disabled") => Ok(ContextPolicy::Stop),
        Some(_) => Err(ApiError::field("truncation", "must be auto or disabled")),
    }
}

/// Returns the number of alternatives per token. `None` without log-probabilities.
fn logprobs(include: &[String], top: Option<usize>) -> Result<Option<usize>, ApiError> {
    let is_known = |name: &String| name == LOGPROBS || EMPTY_INCLUDES.contains(&name.as_str());
    if let Some(name) = include.iter().find(|name| !is_known(name)) {
        return Err(ApiError::unsupported("include", format!("has {name:?}, which is not supported")));
    }
    if top.is_some_and(|count| count > MAX_TOP_LOGPROBS) {
        return Err(ApiError::field("top_logprobs", format!("must be from 0 to {MAX_TOP_LOGPROBS}")));
    }
    match (include.iter().any(|name| name == LOGPROBS), top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::field("top_logprobs", format!("may only be given with include: [{LOGPROBS:?}]")))
        }
    }
}

/// The path of the schema.
const SCHEMA: &str = "text.format.schema";

fn text(text: Option<Value>, request: &mut Fields) -> Result<(Option<ConstraintSpec>, Value), ApiError> {
    let plain = Value::object([("type", "text".into())]);
    let Some(text) = text else { return Ok((None, Value::object([("format", plain)]))) };
    let mut echoed = text.clone();
    let mut fields = Fields::nested("text", text)?;
    fields.read_unused(|fields| fields.take::<String>("verbosity"))?;
    let format = fields.value("format");
    request.add_unused(fields.finish()?);
    let Some(format) = format else {
        echoed.insert("format", plain);
        return Ok((None, echoed));
    };
    let mut fields = Fields::nested("text.format", format)?;
    let kind: Option<String> = fields.take("type")?;
    let grammar = match kind.as_deref() {
        Some("text") => None,
        Some("json_object") => Some(Grammar::JsonSchema(json!({"type": "object"}))),
        Some("json_schema") => {
            // The schema is always enforced; `strict`, name and description have no effect.
            fields.take::<String>("name")?;
            fields.take::<String>("description")?;
            fields.take::<bool>("strict")?;
            let schema = fields.value("schema");
            Some(Grammar::JsonSchema(schema.ok_or_else(|| ApiError::field(SCHEMA, "is missing"))?.into()))
        }
        _ => {
            return Err(ApiError::unsupported(
                "text.format.type",
                "must be text, json_object or json_schema",
            ));
        }
    };
    fields.end()?;
    Ok((grammar.map(ConstraintSpec::from), echoed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn read(request: &Value) -> Result<ResponseRequest, ApiError> {
        ResponseRequest::read(&mut parsed(request))
    }

    fn parsed(request: &Value) -> Fields {
        Fields::parse(request.to_string().as_bytes()).expect("an object")
    }

    #[test]
    fn what_nobody_knows_is_ignored_at_the_top_level_only() {
        let mut request = parsed(&json!({
            "input": "a",
            "mood": 1,
            "tools": [{"type": "web_search"}],
            "client_metadata": {},
            "metadata": {},
            "service_tier": "auto",
            "text": {"verbosity": "low"},
            "include": ["reasoning.encrypted_content"],
        }));
        ResponseRequest::read(&mut request).expect("valid");
        let unused = ["client_metadata", "include[0]", "text.verbosity", "tools[0]", "mood"];
        assert_eq!(request.into_unused(), unused);
        for (request, param) in [
            (json!({"input": [{"role": "user", "content": "a", "mood": 1}]}), "input[0].mood"),
            (json!({"input": "a", "text": {"format": {"type": "text", "mood": 1}}}), "text.format.mood"),
            (json!({"input": "a", "reasoning": {"mood": 1}}), "reasoning.mood"),
            (json!({"input": "a", "reasoning": {"effort": "huge"}}), "reasoning.effort"),
            (json!({"input": "a", "reasoning": {"max_tokens": -2}}), "reasoning.max_tokens"),
            (json!({"input": "a", "background": true}), "background"),
            (json!({"input": "a", "conversation": "conv_1"}), "conversation"),
            (json!({"input": "a", "include": ["moods"]}), "include"),
            (json!({"input": "a", "top_logprobs": 2}), "top_logprobs"),
            (json!({"input": "a", "truncation": "some"}), "truncation"),
            (json!({}), "input"),
        ] {
            assert_eq!(read(&request).expect_err(param).param(), Some(param), "{request}");
        }
    }

    #[test]
    fn a_response_shows_what_was_asked() {
        let echo =
            read(&json!({"input": "a", "temperature": 0.5, "metadata": {"a": "b"}})).expect("valid").echo;
        assert_eq!((&echo["temperature"], &echo["metadata"]), (&json!(0.5), &json!({"a": "b"})));
        assert_eq!((&echo["store"], &echo["user"], &echo["tools"]), (&json!(true), &Value::Null, &json!([])));
    }

    #[test]
    fn a_shown_function_has_every_field() {
        let given = json!([{"type": "function", "name": "tide", "strict": null}]);
        let echo = read(&json!({"input": "a", "tools": given})).expect("valid").echo;
        let echoed = json!({"type": "function", "name": "tide", "description": null, "parameters": null, "strict": false});
        assert_eq!(echo["tools"], json!([echoed]));
    }
}
