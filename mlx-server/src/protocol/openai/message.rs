//! The messages of a chat request: read strictly, with the place of each mistake.

use chat_format::{Image, Part, Role, ToolCall};
use mlx_json::Value;
use serde_json::json;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::field_value::kind;
use crate::fields::{Fields, field_group};
use crate::protocol::content::Places;
use crate::protocol::image;

field_group! {
    /// One message of a conversation.
    #[schema(examples(json!({"role": "user", "content": "Why is the sky blue?"})))]
    pub(crate) struct Message {
        /// The author: system, developer (the same), user, assistant, or tool for the result of a call.
        #[schema(required = true, value_type = String, pattern = "^(system|developer|user|assistant|tool)$")]
        pub(crate) role: String,
        /// A text, or parts of type `text`, which are joined by line ends, and, in messages of the user and of tools, of type `image_url`: a
        /// data URL of a png, jpeg, webp or gif file. Only an assistant's message with `tool_calls` may do without.
        #[schema(value_type = String)]
        pub(crate) content: Value,
        /// Only in a message of role assistant: what it thought before; the model's chat template decides whether it shows it to the model.
        pub(crate) reasoning_content: String,
        /// Another name of `reasoning_content`; if both are given, they must be equal.
        pub(crate) reasoning: String,
        /// Only in a message of role assistant: its calls of tools.
        #[schema(value_type = Vec<ToolCallObject>)]
        pub(crate) tool_calls: Value,
        /// Only in a message of role tool, which needs it: the id of the call that it answers.
        pub(crate) tool_call_id: String,
        /// In a message of role tool: the name of the tool. Elsewhere it is not used.
        pub(crate) name: String,
    }
}

/// A call of a tool.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it describes what `read_call` reads")]
pub(crate) struct ToolCallObject {
    /// The id that the result refers to.
    id: String,
    /// Always `function`.
    #[schema(pattern = "^function$")]
    r#type: String,
    /// The tool and its arguments.
    function: ToolFunction,
}

/// A tool and its arguments.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it describes what `read_call` reads")]
pub(crate) struct ToolFunction {
    /// The name of the tool.
    name: String,
    /// The arguments: the text of a JSON object, as the model wrote it.
    arguments: String,
}

const REFUSED: [(&str, &str); 3] = [
    ("function_call", "give tool_calls"),
    ("audio", "only text is accepted"),
    ("refusal", "give it as content"),
];

/// The maximum number of messages of a conversation. Each takes a thousand times the memory of its shortest text while a template is rendered.
pub(crate) const MAX_MESSAGES: usize = 1 << 16;

/// Reads `messages`.
pub(crate) fn read(messages: Option<Value>) -> Result<Vec<chat_format::Message>, ApiError> {
    let Some(messages) = messages else {
        return Err(ApiError::field("messages", "is missing; give a list of messages"));
    };
    match messages {
        Value::Array(messages) if messages.is_empty() => {
            Err(ApiError::field("messages", "is empty; give at least one message"))
        }
        Value::Array(messages) if messages.len() > MAX_MESSAGES => {
            let message = format!("has {} messages; at most {MAX_MESSAGES} are taken", messages.len());
            Err(ApiError::field("messages", message))
        }
        Value::Array(messages) => {
            messages.into_iter().enumerate().map(|(index, message)| read_one(index, message)).collect()
        }
        other => Err(ApiError::field("messages", format!("is {}; it must be a list", kind(&other)))),
    }
}

fn read_one(index: usize, message: Value) -> Result<chat_format::Message, ApiError> {
    let mut fields = Fields::inside(&format!("messages[{index}]"), message)?;
    let given = Message::read(&mut fields)?;
    let role = role(given.role.as_deref()).map_err(|why| ApiError::field(fields.name("role"), why))?;
    let mut message = chat_format::Message {
        role,
        parts: content(given.content, &fields.name("content"))?,
        reasoning: reasoning(given.reasoning_content, given.reasoning, &fields)?,
        tool_calls: calls(given.tool_calls, &fields.name("tool_calls"))?,
        tool_call_id: given.tool_call_id,
        name: given.name.filter(|_| role == Role::Tool),
    };
    if !message.tool_calls.is_empty() && message.text().is_empty() {
        // Beside calls, an empty text is the same as null.
        message.parts = Vec::new();
    }
    message.check().map_err(|error| match error {
        chat_format::Error::Request { field, message } => ApiError::field(fields.name(field), message),
        other => other.into(),
    })?;
    if role == Role::Tool && message.tool_call_id.is_none() {
        return Err(ApiError::field(fields.name("tool_call_id"), "is missing; give the id of the call"));
    }
    fields.only("annotations", &[json!([])], "only text is accepted")?;
    // LiteLLM repeats in it what the answer had, and sends answers back with it.
    fields.value("provider_specific_fields");
    fields.refuse(&REFUSED)?;
    fields.end()?;
    Ok(message)
}

fn reasoning(
    one: Option<String>,
    other: Option<String>,
    fields: &Fields,
) -> Result<Option<String>, ApiError> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => {
            let message = "is not the same as reasoning_content; give one of them";
            Err(ApiError::field(fields.name("reasoning"), message))
        }
        (one, other) => Ok(one.or(other)),
    }
}

fn role(name: Option<&str>) -> Result<Role, &'static str> {
    match name {
        Some("system") => Ok(Role::System),
        Some("developer") => Ok(Role::Developer),
        Some("user") => Ok(Role::User),
        Some("assistant") => Ok(Role::Assistant),
        Some("tool") => Ok(Role::Tool),
        Some(_) => Err("must be system, developer, user, assistant or tool"),
        None => Err("is missing"),
    }
}

fn content(content: Option<Value>, place: &str) -> Result<Vec<Part>, ApiError> {
    let parts = Places::Brackets.content(content, place, Part::Text, read_part)?;
    if parts.as_ref().is_some_and(Vec::is_empty) {
        return Err(ApiError::field(place, "is an empty list; give at least one part"));
    }
    Ok(parts.unwrap_or_default())
}

fn read_part(part: Value, place: &str) -> Result<Part, ApiError> {
    let mut fields = Fields::inside(place, part)?;
    let part = match fields.take::<String>("type")?.as_deref() {
        Some("text") => {
            let text = fields.take("text")?;
            Part::Text(text.ok_or_else(|| ApiError::field(fields.name("text"), "is missing"))?)
        }
        Some("image_url") => {
            let url = fields.value("image_url");
            let url = url.ok_or_else(|| ApiError::field(fields.name("image_url"), "is missing"))?;
            Part::Image(image_url(url, &fields.name("image_url"))?)
        }
        Some(_) => {
            let message = "only parts of type text and image_url are accepted";
            return Err(ApiError::unsupported(fields.name("type"), message));
        }
        None => return Err(ApiError::field(fields.name("type"), "is missing; it must be text or image_url")),
    };
    fields.end()?;
    Ok(part)
}

fn image_url(url: Value, place: &str) -> Result<Image, ApiError> {
    let mut fields = Fields::inside(place, url)?;
    let url: Option<String> = fields.take("url")?;
    let url = url.ok_or_else(|| ApiError::field(fields.name("url"), "is missing; give a data URL"))?;
    image::expect_detail(&mut fields)?;
    let image = image::of_url(&url, &fields.name("url"))?;
    fields.end()?;
    Ok(image)
}

fn calls(calls: Option<Value>, place: &str) -> Result<Vec<ToolCall>, ApiError> {
    match calls {
        None => Ok(Vec::new()),
        Some(Value::Array(calls)) => {
            Places::Brackets.of(place, calls).map(|(place, call)| read_call(call, &place)).collect()
        }
        Some(other) => Err(ApiError::field(place, format!("is {}; it must be a list", kind(&other)))),
    }
}

fn read_call(call: Value, place: &str) -> Result<ToolCall, ApiError> {
    let missing = |name: String| ApiError::field(name, "is missing");
    let mut fields = Fields::inside(place, call)?;
    let id = fields.take("id")?.ok_or_else(|| missing(fields.name("id")))?;
    fields.only("type", &[json!("function")], "only calls of functions are accepted")?;
    let function = fields.value("function").ok_or_else(|| missing(fields.name("function")))?;
    let mut function = Fields::inside(&fields.name("function"), function)?;
    let name = function.take("name")?.ok_or_else(|| missing(function.name("name")))?;
    let arguments = function.take("arguments")?.ok_or_else(|| missing(function.name("arguments")))?;
    function.end()?;
    fields.end()?;
    Ok(ToolCall { id: Some(id), name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn one(message: &Value) -> Result<chat_format::Message, ApiError> {
        read(Some(json!([message]))).map(|mut messages| messages.remove(0))
    }

    #[test]
    fn messages_are_read_as_the_core_reads_them() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let call = json!({"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}});
        for message in [
            json!({"role": "developer", "content": parts, "name": null, "tool_calls": null}),
            json!({"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}),
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "content": parts, "tool_call_id": "1", "name": "add"}),
        ] {
            let core: chat_format::Message = serde_json::from_str(&message.to_string()).expect("valid");
            assert_eq!(one(&message), Ok(core));
        }
    }

    #[test]
    fn pictures_stand_between_texts() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AQID", "detail": "auto"}});
        let parts = json!([{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}, image]);
        let picture = || Part::Image(Image::file(vec![1, 2, 3]));
        let expected = [Part::Text("a".into()), picture(), Part::Text("b".into()), picture()];
        for message in [
            json!({"role": "user", "content": parts}),
            json!({"role": "tool", "content": parts, "tool_call_id": "1"}),
        ] {
            assert_eq!(one(&message).expect("valid").parts, expected);
        }
    }

    #[test]
    fn what_means_the_same_is_read_the_same() {
        let call = json!([{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]);
        for (message, other) in [
            (
                json!({"role": "assistant", "content": "", "tool_calls": call}),
                json!({"role": "assistant", "content": null, "tool_calls": call}),
            ),
            (
                json!({"role": "assistant", "content": "4", "reasoning": "2 + 2"}),
                json!({"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}),
            ),
            (json!({"role": "user", "content": "b", "name": "Ann"}), json!({"role": "user", "content": "b"})),
            (
                json!({"role": "assistant", "content": "4", "provider_specific_fields": {"refusal": null}}),
                json!({"role": "assistant", "content": "4"}),
            ),
        ] {
            assert_eq!(one(&message), one(&other), "{message}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        let url = |url: &str| json!([{"type": "image_url", "image_url": {"url": url, "detail": "high"}}]);
        let function = json!({"name": "add", "arguments": {}});
        for (message, name) in [
            (json!({"role": "wizard", "content": "b"}), "messages[0].role"),
            (json!({"role": "function", "content": "b"}), "messages[0].role"),
            (json!({"role": "tool", "content": "b"}), "messages[0].tool_call_id"),
            (json!({"content": "b"}), "messages[0].role"),
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "assistant", "content": null, "tool_calls": []}), "messages[0].content"),
            (json!({"role": "user", "content": []}), "messages[0].content"),
            (json!({"role": "user", "content": 5}), "messages[0].content"),
            (json!({"role": "user", "content": [{"type": "audio"}]}), "messages[0].content[0].type"),
            (json!({"role": "user", "content": url("x")}), "messages[0].content[0].image_url.url"),
            (
                json!({"role": "user", "content": url("https://a.b/c")}),
                "messages[0].content[0].image_url.url",
            ),
            (json!({"role": "system", "content": url("data:;base64,AQID")}), "messages[0].content"),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:;base64,AQID", "detail": "low"}}]}),
                "messages[0].content[0].image_url.detail",
            ),
            (
                json!({"role": "assistant", "content": "b", "reasoning": "c", "reasoning_content": "d"}),
                "messages[0].reasoning",
            ),
            (json!({"role": "user", "content": "b", "tool_call_id": "1"}), "messages[0].tool_call_id"),
            (json!({"role": "user", "content": "b", "mood": 1}), "messages[0].mood"),
            (
                json!({"role": "user", "content": "b", "reasoning_content": "c"}),
                "messages[0].reasoning_content",
            ),
            (json!({"role": "assistant", "tool_calls": [{"id": "1"}]}), "messages[0].tool_calls[0].function"),
            (
                json!({"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}),
                "messages[0].tool_calls[0].function.arguments",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"id": "1", "type": "custom"}]}),
                "messages[0].tool_calls[0].type",
            ),
            (json!("hello"), "messages[0]"),
        ] {
            assert_eq!(one(&message).expect_err(name).param(), Some(name));
        }
        assert_eq!(read(Some(json!([]))).expect_err("empty").param(), Some("messages"));
        // Counted before the first of them is read.
        let many = read(Some(vec![json!(5); MAX_MESSAGES + 1].into())).expect_err("too many");
        assert_eq!(many.param(), Some("messages"));
        assert_eq!(read(None).expect_err("missing").param(), Some("messages"));
    }
}
