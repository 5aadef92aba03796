//! The messages of a chat request, checked and in the form that chat templates take.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, field_group, kind};

field_group! {
    /// One message of a conversation.
    #[schema(examples(json!({"role": "user", "content": "Why is the sky blue?"})))]
    pub(crate) struct Message {
        /// Who says it: system, developer (the same), user or assistant.
        #[schema(required = true, value_type = String, pattern = "^(system|developer|user|assistant)$")]
        pub(crate) role: String,
        /// What is said: a text, or parts of type `text`, which are joined by line ends.
        #[schema(required = true, value_type = String)]
        pub(crate) content: Value,
        /// What the assistant thought before it; the model's chat template decides what becomes of it.
        pub(crate) reasoning_content: String,
    }
}

const REFUSED: [(&str, &str); 6] = [
    ("name", "chat templates have no place for names; write it into the content"),
    ("tool_calls", "tools are not offered yet"),
    ("tool_call_id", "tools are not offered yet"),
    ("function_call", "tools are not offered yet"),
    ("audio", "only text is understood"),
    ("refusal", "give it as content"),
];

/// Reads `messages`.
pub(crate) fn read(messages: Option<Value>) -> Result<Vec<Value>, ApiError> {
    let Some(messages) = messages else {
        return Err(ApiError::field("messages", "is missing; give a list of messages"));
    };
    match messages {
        Value::Array(messages) if messages.is_empty() => {
            Err(ApiError::field("messages", "is empty; give at least one message"))
        }
        Value::Array(messages) => {
            messages.into_iter().enumerate().map(|(index, message)| read_one(index, message)).collect()
        }
        other => Err(ApiError::field("messages", format!("is {}; it must be a list", kind(&other)))),
    }
}

fn read_one(index: usize, message: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::inside(&format!("messages[{index}]"), message)?;
    let message = Message::read(&mut fields)?;
    let role = match message.role.as_deref() {
        // A newer name for the same thing; no template knows it.
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant")) => role,
        Some("tool" | "function") => {
            return Err(ApiError::unsupported(fields.name("role"), "tools are not offered yet"));
        }
        Some(_) => {
            let message = "must be system, developer, user or assistant";
            return Err(ApiError::field(fields.name("role"), message));
        }
        None => return Err(ApiError::field(fields.name("role"), "is missing")),
    };
    let place = fields.name("content");
    let mut object = Map::new();
    object.insert("role".into(), json!(role));
    object.insert("content".into(), Value::String(content(message.content, &place)?));
    if let Some(reasoning) = message.reasoning_content {
        if role != "assistant" {
            let message = "belongs to messages of the assistant";
            return Err(ApiError::field(fields.name("reasoning_content"), message));
        }
        object.insert("reasoning_content".into(), reasoning.into());
    }
    fields.only("annotations", &[json!([])], "only text is understood")?;
    fields.refuse(&REFUSED)?;
    fields.end()?;
    Ok(Value::Object(object))
}

fn content(content: Option<Value>, place: &str) -> Result<String, ApiError> {
    match content {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) if !parts.is_empty() => {
            let parts = parts.into_iter().enumerate();
            let texts = parts.map(|(index, part)| text_part(part, &format!("{place}[{index}]")));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        None => Err(ApiError::field(place, "is missing; give a text")),
        Some(Value::Array(_)) => Err(ApiError::field(place, "is an empty list; give at least one part")),
        Some(other) => Err(ApiError::field(
            place,
            format!("is {}; it must be a string or a list of parts", kind(&other)),
        )),
    }
}

fn text_part(part: Value, place: &str) -> Result<String, ApiError> {
    let mut fields = Fields::inside(place, part)?;
    match fields.take::<String>("type")?.as_deref() {
        Some("text") => {}
        Some(_) => {
            return Err(ApiError::unsupported(fields.name("type"), "only parts of type text are understood"));
        }
        None => return Err(ApiError::field(fields.name("type"), "is missing; it must be text")),
    }
    let text = fields.take("text")?;
    let text = text.ok_or_else(|| ApiError::field(fields.name("text"), "is missing"))?;
    fields.end()?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(message: &Value) -> Result<Value, ApiError> {
        read(Some(json!([message]))).map(|mut messages| messages.remove(0))
    }

    #[test]
    fn messages_take_the_form_of_templates() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let given = json!({"role": "developer", "content": parts, "name": null, "tool_calls": null});
        assert_eq!(one(&given).expect("valid"), json!({"role": "system", "content": "a\nb"}));
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
        for (message, name) in [
            (json!({"role": "wizard", "content": "b"}), "messages[0].role"),
            (json!({"role": "tool", "content": "b"}), "messages[0].role"),
            (json!({"content": "b"}), "messages[0].role"),
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "user", "content": []}), "messages[0].content"),
            (json!({"role": "user", "content": 5}), "messages[0].content"),
            (json!({"role": "user", "content": image}), "messages[0].content[0].type"),
            (json!({"role": "user", "content": "b", "name": "Ann"}), "messages[0].name"),
            (json!({"role": "user", "content": "b", "mood": 1}), "messages[0].mood"),
            (
                json!({"role": "user", "content": "b", "reasoning_content": "c"}),
                "messages[0].reasoning_content",
            ),
            (json!("hello"), "messages[0]"),
        ] {
            assert_eq!(one(&message).expect_err(name).param(), Some(name));
        }
        assert_eq!(read(Some(json!([]))).expect_err("empty").param(), Some("messages"));
        assert_eq!(read(None).expect_err("missing").param(), Some("messages"));
    }
}
