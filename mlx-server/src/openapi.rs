//! The description of the API, made from the code that reads the requests.

use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use crate::error::ErrorResponse;
use crate::routes;

#[derive(OpenApi)]
#[openapi(
    info(title = "mlx-server", description = "Language models on this machine, behind OpenAI's API."),
    paths(
        routes::chat::complete,
        routes::chat::render,
        routes::completions::complete,
        routes::models::list,
        routes::models::one,
        routes::text::tokenize,
        routes::text::detokenize,
        routes::operation::health,
        routes::operation::ready,
        routes::operation::metrics,
        routes::operation::openapi,
    ),
    components(schemas(ErrorResponse))
)]
struct Api;

/// The document.
pub fn document() -> Document {
    Api::openapi()
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde_json::{Map, Value, json};

    use super::*;
    use crate::error::ApiError;
    use crate::fields::Fields;
    use crate::wire::chat::{ChatRequest, RenderRequest};
    use crate::wire::completion::CompletionRequest;
    use crate::wire::text::{DetokenizeRequest, TokenizeRequest};

    type Reader = fn(Fields) -> Result<String, ApiError>;

    fn shown<T: Debug>(request: Result<T, ApiError>) -> Result<String, ApiError> {
        request.map(|request| format!("{request:?}"))
    }

    /// Every request of the API: where its document is, and what its text says when it is understood.
    const REQUESTS: [(&str, Reader); 5] = [
        ("/v1/chat/completions", |fields| shown(ChatRequest::read(fields))),
        ("/v1/chat/render", |fields| shown(RenderRequest::read(fields))),
        ("/v1/completions", |fields| shown(CompletionRequest::read(fields))),
        ("/tokenize", |fields| shown(TokenizeRequest::read(fields))),
        ("/detokenize", |fields| shown(DetokenizeRequest::read(fields))),
    ];

    fn read(reader: Reader, request: &Map<String, Value>) -> Result<String, ApiError> {
        reader(Fields::parse(&serde_json::to_vec(request).expect("json")).expect("an object"))
    }

    /// Fields that mean something only beside another one.
    fn companions(field: &str) -> Map<String, Value> {
        let companions = match field {
            "stream_options" => json!({"stream": true}),
            "top_logprobs" => json!({"logprobs": true}),
            _ => json!({}),
        };
        companions.as_object().cloned().unwrap_or_default()
    }

    fn follow<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
        let reference = schema["$ref"].as_str().and_then(|it| it.strip_prefix('#'));
        reference.map_or(schema, |pointer| document.pointer(pointer).expect("the reference leads somewhere"))
    }

    fn example(document: &Value, field: &str, property: &Value) -> Value {
        // The description has no room for an example where it refers to another object.
        match field {
            "stop" => return json!("END"),
            "stream_options" => return json!({"include_usage": true}),
            "chat_template_kwargs" => return json!({"enable_thinking": false}),
            _ => {}
        }
        let items = follow(document, &property["items"]);
        let own = property.get("example").or_else(|| property["examples"].get(0)).cloned();
        let of_items = || items.get("example").or_else(|| items["examples"].get(0)).map(|item| json!([item]));
        own.or_else(of_items)
            .unwrap_or_else(|| panic!("{field} needs an example, so that this test can send it"))
    }

    /// Each documented field, sent alone, changes what the request means or is refused by its name.
    #[test]
    fn every_documented_field_is_read() {
        let document = serde_json::to_value(document()).expect("json");
        let posts =
            document["paths"].as_object().expect("paths").iter().filter(|(_, path)| !path["post"].is_null());
        assert_eq!(posts.count(), REQUESTS.len(), "every request is walked");
        let mut walked = 0;
        for (path, reader) in REQUESTS {
            let body =
                &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
            let schema = follow(&document, body);
            assert_eq!(schema["additionalProperties"], json!(false), "{path}");
            let required: Map<String, Value> = schema["required"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|field| field.as_str().expect("a name"))
                .map(|field| (field.to_owned(), example(&document, field, &schema["properties"][field])))
                .collect();
            for (field, property) in schema["properties"].as_object().expect("properties") {
                walked += 1;
                let mut base = required.clone();
                base.extend(companions(field));
                if let Some(allowed) = property["enum"].as_array() {
                    check_fixed(reader, &base, field, allowed);
                    continue;
                }
                base.remove(field);
                let without = read(reader, &base);
                base.insert(field.clone(), example(&document, field, property));
                match read(reader, &base) {
                    Err(error) => assert_eq!(error.param(), Some(field.as_str()), "{path}"),
                    Ok(meaning) => assert_ne!(Ok(meaning), without, "{path}: {field} changes nothing"),
                }
                base.insert(field.clone(), json!({"a": [{}]}));
                if let Err(error) = read(reader, &base) {
                    let param = error.param().expect("a name");
                    assert!(param.starts_with(field.as_str()), "{path}: {param} is blamed for {field}");
                }
            }
        }
        assert!(walked > 70, "{walked} fields");
    }

    /// A field that can say one thing alone says it, or is refused.
    fn check_fixed(reader: Reader, base: &Map<String, Value>, field: &str, allowed: &[Value]) {
        for value in allowed.iter().cloned().chain([Value::Null]) {
            let mut request = base.clone();
            request.insert(field.to_owned(), value);
            assert_eq!(read(reader, &request), read(reader, base), "{field}");
        }
        let mut request = base.clone();
        request.insert(field.to_owned(), json!(["something", "else"]));
        assert_eq!(read(reader, &request).expect_err(field).param(), Some(field));
    }

    #[test]
    fn fields_that_come_later_are_refused_by_name() {
        for field in ["response_format", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort"] {
            let request =
                json!({"messages": [{"role": "user", "content": "a"}], field: {"type": "json_object"}});
            let error = read(REQUESTS[0].1, request.as_object().expect("an object")).expect_err(field);
            assert_eq!(error.param(), Some(field));
        }
    }
}
