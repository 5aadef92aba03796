//! The OpenAPI document, generated from the code that reads requests.

use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use crate::error::ErrorResponse;
use crate::json::Json;
use crate::routes::{
    audio, batches, chat, completions, embeddings, files, mcp, messages, models, ollama, operation, pull,
    rerank, responses, text,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "mlx-server",
        description = "Local language models with the APIs of OpenAI, Anthropic and Ollama."
    ),
    paths(
        chat::complete,
        chat::render,
        completions::complete,
        embeddings::embed,
        rerank::rerank,
        audio::transcribe,
        audio::translate,
        responses::create,
        responses::fetch,
        responses::delete,
        responses::cancel,
        responses::items,
        files::store,
        files::list,
        files::describe,
        files::content,
        files::delete,
        batches::create,
        batches::list,
        batches::describe,
        batches::cancel,
        messages::create,
        messages::count_tokens,
        ollama::complete,
        ollama::text,
        ollama::embeddings,
        ollama::embedding,
        ollama::tags,
        ollama::loaded,
        ollama::show,
        pull::pull,
        ollama::version,
        models::list,
        models::one,
        models::load,
        models::unload,
        mcp::tools,
        mcp::call,
        text::tokenize,
        text::detokenize,
        operation::health,
        operation::ready,
        operation::metrics,
        operation::usage,
        openapi,
    ),
    components(schemas(ErrorResponse))
)]
struct Api;

/// Returns the OpenAPI document of the server.
pub fn document() -> Document {
    Api::openapi()
}

/// Returns this document.
#[utoipa::path(get, path = "/openapi.json", tag = "operation", responses((status = 200, body = Object)))]
pub(crate) async fn openapi() -> Response {
    Json(document()).into_response()
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::error::ApiError;
    use crate::fields::{Fields, READ};
    use crate::protocol::mcp::McpCallRequest;
    use crate::protocol::messages::request::{MessagesCountRequest, MessagesRequest};
    use crate::protocol::ollama::embed::{OllamaEmbedRequest, OllamaEmbeddingRequest};
    use crate::protocol::ollama::model::ShowRequest;
    use crate::protocol::ollama::pull::PullRequest;
    use crate::protocol::ollama::request::{OllamaChatRequest, OllamaGenerateRequest};
    use crate::protocol::openai::audio::AudioRequest;
    use crate::protocol::openai::batch::BatchRequest;
    use crate::protocol::openai::chat::{ChatCompletionRequest, RenderRequest};
    use crate::protocol::openai::completion::CompletionRequest;
    use crate::protocol::openai::embedding::EmbeddingRequest;
    use crate::protocol::openai::file::FileUpload;
    use crate::protocol::openai::models::{LoadRequest, UnloadRequest};
    use crate::protocol::openai::text::{DetokenizeRequest, TokenizeRequest};
    use crate::protocol::rerank::RerankRequest;
    use crate::protocol::responses::request::ResponseRequest;

    type Reader = fn(&mut Fields) -> Result<String, ApiError>;

    fn debug_text<T: Debug>(request: Result<T, ApiError>) -> Result<String, ApiError> {
        request.map(|request| format!("{request:?}"))
    }

    /// All requests of the API: the path in the document, and a function that parses a request and returns its debug text.
    const REQUESTS: [(&str, Reader); 23] = [
        ("/v1/chat/completions", |fields| debug_text(ChatCompletionRequest::read(fields))),
        ("/v1/responses", |fields| debug_text(ResponseRequest::read(fields))),
        ("/api/chat", |fields| debug_text(OllamaChatRequest::read(fields))),
        ("/api/generate", |fields| debug_text(OllamaGenerateRequest::read(fields))),
        ("/api/embed", |fields| debug_text(OllamaEmbedRequest::read(fields))),
        ("/api/embeddings", |fields| debug_text(OllamaEmbeddingRequest::read(fields))),
        ("/api/pull", |fields| debug_text(PullRequest::read(fields))),
        ("/api/show", |fields| debug_text(ShowRequest::read(fields))),
        ("/v1/models/load", |fields| debug_text(LoadRequest::read(fields))),
        ("/v1/models/unload", |fields| debug_text(UnloadRequest::read(fields))),
        ("/v1/mcp/call", |fields| debug_text(McpCallRequest::read(fields))),
        ("/v1/chat/render", |fields| debug_text(RenderRequest::read(fields))),
        ("/v1/completions", |fields| debug_text(CompletionRequest::read(fields))),
        ("/v1/embeddings", |fields| debug_text(EmbeddingRequest::read(fields))),
        ("/v1/rerank", |fields| debug_text(RerankRequest::read(fields))),
        ("/v1/audio/transcriptions", |fields| debug_text(AudioRequest::read(fields))),
        ("/v1/audio/translations", |fields| debug_text(AudioRequest::read(fields))),
        ("/v1/files", |fields| debug_text(FileUpload::read(fields))),
        ("/v1/batches", |fields| debug_text(BatchRequest::read(fields))),
        ("/v1/messages", |fields| debug_text(MessagesRequest::read(fields))),
        ("/v1/messages/count_tokens", |fields| debug_text(MessagesCountRequest::read(fields))),
        ("/tokenize", |fields| debug_text(TokenizeRequest::read(fields))),
        ("/detokenize", |fields| debug_text(DetokenizeRequest::read(fields))),
    ];

    fn read(reader: Reader, request: &Map<String, Value>) -> Result<String, ApiError> {
        read_with_unused(reader, request).map(|(meaning, _)| meaning)
    }

    /// Returns a request's debug text and its unused fields.
    fn read_with_unused(
        reader: Reader,
        request: &Map<String, Value>,
    ) -> Result<(String, Vec<String>), ApiError> {
        let mut fields = Fields::parse(&serde_json::to_vec(request).expect("json")).expect("an object");
        reader(&mut fields).map(|meaning| (meaning, fields.into_unused()))
    }

    /// Returns fields that `field` requires.
    fn companions(path: &str, field: &str) -> Map<String, Value> {
        let companions = match (path, field) {
            (_, "stream_options") => json!({"stream": true}),
            ("/v1/responses", "top_logprobs") => json!({"include": ["message.output_text.logprobs"]}),
            (_, "top_logprobs") => json!({"logprobs": true}),
            ("/api/generate", "system" | "images") => json!({"prompt": "Go"}),
            ("/api/pull", "stream") => json!({"model": "org/name"}),
            (_, "best_of") => json!({"n": 2}),
            (_, "timestamp_granularities") => json!({"response_format": "verbose_json"}),
            _ => json!({}),
        };
        companions.as_object().cloned().unwrap_or_default()
    }

    fn follow<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
        let reference = schema["$ref"].as_str().and_then(|it| it.strip_prefix('#'));
        reference.map_or(schema, |pointer| document.pointer(pointer).expect("the reference exists"))
    }

    fn example(document: &Value, field: &str, property: &Value) -> Value {
        // A property that is a reference has no separate example.
        match field {
            "tool_choice" if property["type"] == json!(["object", "null"]) => {
                return json!({"type": "none"});
            }
            "response_format" if property["type"] == json!(["string", "null"]) => {
                return json!("verbose_json");
            }
            "stop" => return json!("END"),
            "stream_options" => return json!({"include_usage": true}),
            "chat_template_kwargs" => return json!({"enable_thinking": false}),
            "response_format" => return json!({"type": "json_object"}),
            "structured_outputs" => return json!({"choice": ["yes", "no"]}),
            "arguments" => return json!({"path": "plan.md"}),
            "metadata" => return json!({"topic": "tides"}),
            "format" => return json!("json"),
            "prediction" => return json!({"type": "content", "content": "a"}),
            "options" => return json!({"temperature": 0.5}),
            "reasoning" => return json!({"effort": "low"}),
            "text" => return json!({"format": {"type": "json_object"}}),
            "cache_control" => return json!({"type": "ephemeral"}),
            "context_management" => return json!({"edits": [{"type": "clear_tool_uses_20250919"}]}),
            "thinking" => return json!({"type": "adaptive"}),
            "output_config" => return json!({"effort": "high"}),
            "output_format" => return json!({"type": "json_schema", "schema": {"type": "object"}}),
            _ => {}
        }
        let items = follow(document, &property["items"]);
        let own_example = property.get("example").or_else(|| property["examples"].get(0)).cloned();
        let of_items = || items.get("example").or_else(|| items["examples"].get(0)).map(|item| json!([item]));
        own_example
            .or_else(of_items)
            .unwrap_or_else(|| panic!("{field} needs an example, so that this test can send it"))
    }

    /// Fields that the response repeats, without effect on the answer.
    const SHOWN: [&str; 5] =
        ["max_tool_calls", "metadata", "prompt_cache_key", "safety_identifier", "service_tier"];

    /// The server accepts the example of each documented field. The field changes the parsed request or is reported as unused.
    /// Undocumented fields are reported as unused.
    #[test]
    fn every_documented_field_is_read() {
        let document = serde_json::to_value(document()).expect("json");
        let paths = document["paths"].as_object().expect("paths");
        let posts = paths.iter().filter(|(_, path)| !path["post"]["requestBody"].is_null());
        assert_eq!(posts.count(), REQUESTS.len(), "every request is walked");
        let (mut walked, mut faults) = (0, Vec::new());
        for (path, reader) in REQUESTS {
            let is_form = path.starts_with("/v1/audio/") || path == "/v1/files";
            let kind = if is_form { "multipart/form-data" } else { "application/json" };
            let body = &document["paths"][path]["post"]["requestBody"]["content"][kind]["schema"];
            let schema = follow(&document, body);
            assert_eq!(schema["additionalProperties"], true, "{path}");
            READ.take();
            let required: Map<String, Value> = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|field| field.as_str().expect("a name"))
                .map(|field| (field.to_owned(), example(&document, field, &schema["properties"][field])))
                .collect();
            let mut with_another = required.clone();
            if !schema["properties"]["model"].is_null() {
                with_another.insert("model".to_owned(), json!("tiny"));
            }
            let known = read(reader, &with_another).expect(path);
            with_another.extend([("frobnicate".to_owned(), json!(1)), ("absent".to_owned(), Value::Null)]);
            let unused = vec!["frobnicate".to_owned()];
            assert_eq!(read_with_unused(reader, &with_another), Ok((known, unused)), "{path}");
            for (field, property) in schema["properties"].as_object().expect("properties") {
                walked += 1;
                let mut base = required.clone();
                base.extend(companions(path, field));
                if field == "texts" {
                    // Another name of it.
                    base.remove("documents");
                }
                if let Some(allowed) = property["enum"].as_array() {
                    check_fixed(reader, &base, field, allowed);
                    continue;
                }
                base.remove(field);
                let without = read(reader, &base);
                if !required.contains_key(field) {
                    assert!(allows_null(property), "{path}: null for {field} is not in the schema");
                    base.insert(field.clone(), Value::Null);
                    assert_eq!(read(reader, &base), without, "{path}: {field} is null");
                }
                base.insert(field.clone(), example(&document, field, property));
                match read_with_unused(reader, &base) {
                    Err(error) => {
                        faults.push(format!("{path}: the example of {field} is refused: {error:?}"));
                    }
                    // Must equal n.
                    Ok(_) if field == "best_of" => {}
                    Ok((meaning, unused)) => assert!(
                        Ok(meaning) != without || unused.contains(field),
                        "{path}: {field} has no effect"
                    ),
                }
                base.insert(field.clone(), json!({"a": [{}]}));
                if let Err(error) = read(reader, &base) {
                    let param = error.param().unwrap_or_else(|| panic!("{path}: {field}: {error:?}"));
                    assert!(param.starts_with(field.as_str()), "{path}: the error for {field} names {param}");
                }
            }
            let documented = schema["properties"].as_object().expect("properties");
            let read = READ.take().into_iter().filter(|field| !documented.contains_key(field));
            let is_shown = |field: &String| path == "/v1/responses" && SHOWN.contains(&field.as_str());
            faults.extend(
                read.filter(|field| !is_shown(field))
                    .map(|field| format!("{path}: {field} is not documented")),
            );
        }
        assert!(faults.is_empty(), "{faults:#?}");
        assert!(walked > 70, "{walked} fields");
    }

    fn allows_null(property: &Value) -> bool {
        let types = property["type"].as_array().is_some_and(|types| types.contains(&json!("null")));
        types || property["anyOf"].as_array().is_some_and(|any| any.contains(&json!({"type": "null"})))
    }

    /// Checks that a field with fixed values accepts those and rejects others.
    fn check_fixed(reader: Reader, base: &Map<String, Value>, field: &str, allowed: &[Value]) {
        assert!(allowed.contains(&Value::Null), "{field}");
        for value in allowed.iter().cloned() {
            let mut request = base.clone();
            request.insert(field.to_owned(), value);
            assert_eq!(read(reader, &request), read(reader, base), "{field}");
        }
        let mut request = base.clone();
        request.insert(field.to_owned(), json!(["something", "else"]));
        assert_eq!(read(reader, &request).expect_err(field).param(), Some(field));
    }

    /// Generates any JSON value.
    fn junk() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            (-2..4).prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
            prop::sample::select(&["user", "text", "low", "a"][..]).prop_map(Value::from),
        ];
        let key = prop_oneof![
            "[a-z]{1,3}",
            prop::sample::select(&["role", "content", "type", "text"][..]).prop_map(String::from)
        ];
        leaf.prop_recursive(3, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..4)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    /// Returns the names of all fields of all requests.
    fn names() -> Vec<String> {
        let document = serde_json::to_value(document()).expect("json");
        let schemas = document["components"]["schemas"].as_object().expect("schemas").clone();
        let requests = schemas.into_iter().filter(|(name, _)| name.ends_with("Request"));
        requests
            .flat_map(|(_, it)| it["properties"].as_object().expect("properties").clone())
            .map(|it| it.0)
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Any value of a field is accepted, or rejected with an error that names a field of the request.
        #[test]
        fn no_field_value_causes_a_server_error(
            fields in prop::collection::vec((prop::sample::select(names()), junk()), 1..4),
        ) {
            for (path, reader) in REQUESTS {
                let mut request = Map::new();
                request.insert("messages".into(), json!([{"role": "user", "content": "a"}]));
                if path.starts_with("/v1/chat") { request.extend(fields.clone()) } else { request = fields.iter().cloned().collect() }
                if let Err(error) = read(reader, &request) {
                    prop_assert_eq!(error.status().as_u16(), 400);
                    let param = error.param().unwrap_or_default();
                    let name = param.split(['.', '[']).next().unwrap_or_default();
                    prop_assert!(request.contains_key(name) || ["messages", "prompt", "input", "content", "tokens", "max_tokens", "model", "query", "documents", "file", "server", "tool", "purpose", "input_file_id", "endpoint", "completion_window"].contains(&name), "{}", param);
                }
            }
        }

        /// Broken bodies are rejected without a panic.
        #[test]
        fn no_body_causes_a_server_error(body in prop::collection::vec(any::<u8>(), 0..64), cut in 0..60_usize) {
            let good = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}).to_string().into_bytes();
            let mut mixed = good[..cut].to_vec();
            mixed.extend(&body);
            for bytes in [&body, &mixed] {
                if let Err(error) = Fields::parse(bytes) {
                    prop_assert_eq!(error.status().as_u16(), 400);
                }
            }
        }
    }

    #[test]
    fn unsupported_fields_are_refused_by_name() {
        for field in ["tools", "functions", "parallel_tool_calls", "reasoning_effort"] {
            let request =
                json!({"messages": [{"role": "user", "content": "a"}], field: {"type": "json_object"}});
            let error = read(REQUESTS[0].1, request.as_object().expect("an object")).expect_err(field);
            assert_eq!(error.param(), Some(field));
        }
    }
}
