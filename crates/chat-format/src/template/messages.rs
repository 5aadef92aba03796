//! Converts messages to the format that a chat template expects. Templates differ in the place of thoughts, in the
//! value for missing content, and in the type of call arguments: an object or its text.

use mlx_json::{Map, Value};

use crate::{Message, Part, Role, ToolCall};

/// The message format of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageForm {
    /// The place of the thoughts of earlier answers.
    reasoning: ReasoningForm,
    /// True if missing content is null, and false if it is an empty text.
    null_content: bool,
    /// True if the arguments of calls are a text, and false if they are an object.
    arguments_text: bool,
}

/// The place of the thoughts of earlier answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReasoningForm {
    /// A key of the message.
    Key(&'static str),
    /// A part of the content, of type `thinking`.
    Part,
}

impl MessageForm {
    /// Returns the format that a template seems to expect. `mentions` returns true if its source contains a text.
    pub(super) fn of(mentions: impl Fn(&str) -> bool) -> Self {
        let key = ["reasoning_content", "thinking", "reasoning"].into_iter().find(|key| {
            ["message.", "message['", "message[\"", "message.get('", "m.", "msg."]
                .iter()
                .any(|before| mentions(&format!("{before}{key}")))
        });
        let reasoning = match key {
            Some(key) => ReasoningForm::Key(key),
            None if mentions("'] == 'thinking'") => ReasoningForm::Part,
            None => ReasoningForm::Key("reasoning_content"),
        };
        let tests_null =
            ["content'] is none", "content\"] is none", "content is none"].into_iter().any(&mentions);
        Self { reasoning, null_content: tests_null, arguments_text: false }
    }

    /// Returns alternative formats, for a template that fails with this one. The expected format of calls cannot
    /// always be detected.
    pub(super) fn others(self) -> [Self; 3] {
        let (null_content, arguments_text) = (!self.null_content, !self.arguments_text);
        [
            Self { null_content, ..self },
            Self { arguments_text, ..self },
            Self { null_content, arguments_text, ..self },
        ]
    }

    /// Returns the message in the template's format.
    pub(super) fn write(self, message: &Message) -> Value {
        let mut object = Map::new();
        object.insert("role".into(), role(message.role).into());
        object.insert("content".into(), self.content(message));
        if let (Some(reasoning), ReasoningForm::Key(key)) = (&message.reasoning, self.reasoning) {
            object.insert(key.into(), reasoning.as_str().into());
        }
        if !message.tool_calls.is_empty() {
            object
                .insert("tool_calls".into(), message.tool_calls.iter().map(|call| self.call(call)).collect());
        }
        for (key, value) in [("tool_call_id", &message.tool_call_id), ("name", &message.name)] {
            if let Some(text) = value {
                object.insert(key.into(), text.as_str().into());
            }
        }
        Value::Object(object)
    }

    /// Text parts are joined, since most templates only accept a text. Templates with image or audio support accept parts.
    fn content(self, message: &Message) -> Value {
        if let (Some(reasoning), ReasoningForm::Part) = (&message.reasoning, self.reasoning) {
            let thinking =
                Value::object([("type", "thinking".into()), ("thinking", reasoning.as_str().into())]);
            return std::iter::once(thinking).chain(message.parts.iter().map(part)).collect();
        }
        if message.parts.iter().any(|part| part.text().is_none()) {
            return message.parts.iter().map(part).collect();
        }
        if message.parts.is_empty() && self.null_content { Value::Null } else { message.text().into() }
    }

    fn call(self, call: &ToolCall) -> Value {
        let object = || mlx_json::parse(call.arguments.as_bytes()).ok()?.into_object().map(Value::Object);
        let text = || Value::String(call.arguments.clone());
        let arguments = if self.arguments_text { text() } else { object().unwrap_or_else(text) };
        let mut written = Map::new();
        if let Some(id) = &call.id {
            written.insert("id".into(), id.as_str().into());
        }
        written.insert("type".into(), "function".into());
        let function = Value::object([("name", call.name.as_str().into()), ("arguments", arguments)]);
        written.insert("function".into(), function);
        Value::Object(written)
    }
}

fn part(part: &Part) -> Value {
    match part {
        Part::Text(text) => Value::object([("type", "text".into()), ("text", text.as_str().into())]),
        Part::Image(_) => Value::object([("type", "image".into())]),
        Part::Audio(_) => Value::object([("type", "audio".into())]),
    }
}

fn role(role: Role) -> &'static str {
    match role {
        // Few templates support the newer name, and those treat both alike.
        Role::System | Role::Developer => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{ChatTemplate, TemplateInput};

    fn written(template: &str, message: serde_json::Value) -> Value {
        let message = serde_json::from_value(message).expect("a message");
        MessageForm::of(|text| template.contains(text)).write(&message)
    }

    #[test]
    fn thoughts_stand_where_the_template_looks() {
        let answer = json!({"role": "assistant", "content": "4", "reasoning_content": "2 + 2"});
        let keys = |template: &str| -> Vec<String> {
            written(template, answer.clone()).as_object().expect("an object").keys().cloned().collect()
        };
        assert_eq!(keys("{{ message.reasoning_content }}"), ["role", "content", "reasoning_content"]);
        assert_eq!(keys("{{ message.thinking }}"), ["role", "content", "thinking"]);
        assert_eq!(keys("{{ message.get('reasoning') }}"), ["role", "content", "reasoning"]);
        assert_eq!(keys("{{ message.content }}"), ["role", "content", "reasoning_content"]);
        let parts = written("{% if block['type'] == 'thinking' %}", answer);
        assert_eq!(parts["content"][0], json!({"type": "thinking", "thinking": "2 + 2"}));
        assert_eq!(parts["content"][1], json!({"type": "text", "text": "4"}));
    }

    #[test]
    fn a_message_with_pictures_is_a_list_of_parts() {
        let image = json!({"width": 1, "height": 1, "rgb": "AAEC"});
        let parts = json!([{"type": "image", "image": image}, {"type": "text", "text": "?"}]);
        let object = written("", json!({"role": "user", "content": parts}));
        assert_eq!(object["content"], json!([{"type": "image"}, {"type": "text", "text": "?"}]));
    }

    #[test]
    fn calls_take_the_form_of_transformers() {
        let call = json!({"id": "1", "type": "function", "function": {"name": "add", "arguments": "{\"b\": 1, \"a\": 2}"}});
        let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let object = written("", message.clone());
        assert_eq!(object["content"].as_str(), Some(""));
        assert_eq!(object["tool_calls"][0]["function"]["arguments"].to_string(), r#"{"b":1,"a":2}"#);
        assert_eq!(written("{% if message['content'] is none %}", message.clone())["content"], Value::Null);
        let message: Message = serde_json::from_value(message).expect("a message");
        let text = MessageForm::of(|_| false).others()[1].write(&message);
        assert_eq!(text["tool_calls"][0]["function"]["arguments"].as_str(), Some("{\"b\": 1, \"a\": 2}"));
    }

    #[test]
    fn a_template_that_fails_gets_another_form_of_calls() {
        let call = json!({"id": "1", "function": {"name": "add", "arguments": "{\"a\": 1}"}});
        let message: Message =
            serde_json::from_value(json!({"role": "assistant", "tool_calls": [call]})).expect("valid");
        let render = |source: &str, messages: Vec<Message>| {
            let template = ChatTemplate::from_source(source, serde_json::Map::new()).expect("it compiles");
            template.render(&TemplateInput { messages, ..TemplateInput::default() })
        };
        for (source, expected) in [
            ("{{ messages[0].tool_calls[0].function.arguments + '!' }}", "{\"a\": 1}!"),
            ("{{ messages[0].tool_calls[0].function.arguments.a + 1 }}", "2"),
            ("{% if messages[0].content is none %}{{ messages[0].content + '!' }}{% endif %}null", "null"),
            ("{{ messages[0].content + '!' }}", "!"),
        ] {
            assert_eq!(render(source, vec![message.clone()]).expect(source), expected, "{source}");
        }
        let error =
            render("{{ raise_exception('no ' + messages[0].role) }}", vec![message]).expect_err("it raises");
        assert!(error.to_string().contains("no assistant"), "{error}");
    }
}
