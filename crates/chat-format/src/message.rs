//! A message of a conversation. Front ends, sessions and chat templates share this type. It is serialized in the
//! format of `OpenAI`'s API; `template/messages.rs` converts it to the format that a template expects.

use mlx_json::Value;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

use crate::part::{Part, WirePart};
use crate::{Audio, Image};

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// `OpenAI`'s newer name for [`Role::System`]. Templates receive `system`.
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// Returns true if the message contains instructions.
    pub fn is_instruction(self) -> bool {
        matches!(self, Self::System | Self::Developer)
    }
}

/// A tool call by the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The id that the result refers to.
    pub id: Option<String>,
    /// The name of the tool.
    pub name: String,
    /// The arguments as written by the model, usually the text of a JSON object.
    pub arguments: String,
}

impl ToolCall {
    /// Returns true if the arguments are the text of a JSON object.
    pub fn has_object(&self) -> bool {
        mlx_json::parse(self.arguments.as_bytes()).is_ok_and(|value| value.as_object().is_some())
    }
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Wire", try_from = "Wire")]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The content. It is null if there are no parts, which is only valid for an assistant message with tool calls.
    pub parts: Vec<Part>,
    /// The assistant's thoughts before the content.
    pub reasoning: Option<String>,
    /// The assistant's tool calls.
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool message answers.
    pub tool_call_id: Option<String>,
    /// The tool's name, in a tool message.
    pub name: Option<String>,
}

impl Message {
    /// Returns a text message.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            parts: vec![Part::Text(text.into())],
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }

    /// Returns instructions for the whole conversation.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new(Role::System, text)
    }

    /// Returns a user message.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(Role::User, text)
    }

    /// Returns a user message with pictures before the text.
    pub fn user_with(images: Vec<Image>, text: impl Into<String>) -> Self {
        Self::user_about(images.into_iter().map(Part::Image).collect(), text)
    }

    /// Returns a user message with these parts before the text.
    pub fn user_about(mut parts: Vec<Part>, text: impl Into<String>) -> Self {
        parts.push(Part::Text(text.into()));
        Self { parts, ..Self::user("") }
    }

    /// Returns an assistant message.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new(Role::Assistant, text)
    }

    /// Returns the text of all text parts, joined by line ends.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.parts.iter().filter_map(Part::text).collect();
        texts.join("\n")
    }

    /// Returns its pictures in order.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.parts.iter().filter_map(Part::image)
    }

    /// Returns its audio in order.
    pub fn audio(&self) -> impl Iterator<Item = &Audio> {
        self.parts.iter().filter_map(Part::audio)
    }

    /// Appends to the last part if that is text, else adds a part.
    pub fn push_text(&mut self, more: &str) {
        match self.parts.last_mut() {
            Some(Part::Text(text)) => text.push_str(more),
            _ => self.parts.push(Part::Text(more.to_owned())),
        }
    }

    /// Rejects fields that are not valid for the message's role. The error contains the field.
    pub fn check(&self) -> Result<()> {
        let is_assistant = self.role == Role::Assistant;
        if self.parts.is_empty() && self.tool_calls.is_empty() {
            return Err(Error::request("content", "is missing; give a text"));
        }
        if self.images().next().is_some() && !matches!(self.role, Role::User | Role::Tool) {
            return Err(Error::request(
                "content",
                "holds an image; images are only valid in messages of role user or tool",
            ));
        }
        if self.audio().next().is_some() && self.role != Role::User {
            let message = "holds audio; audio is only valid in messages of role user";
            return Err(Error::request("content", message));
        }
        if self.reasoning.is_some() && !is_assistant {
            return Err(Error::request("reasoning_content", "is only valid in assistant messages"));
        }
        if !self.tool_calls.is_empty() && !is_assistant {
            return Err(Error::request("tool_calls", "is only valid in assistant messages"));
        }
        if self.tool_call_id.is_some() && self.role != Role::Tool {
            return Err(Error::request("tool_call_id", "is only valid in messages of role tool"));
        }
        if self.name.is_some() && self.role != Role::Tool {
            let message = "is only valid in messages of role tool; put other names into the content";
            return Err(Error::request("name", message));
        }
        Ok(())
    }

    /// Returns the total size in bytes of everything that becomes text.
    pub fn text_bytes(&self) -> usize {
        let parts: usize = self.parts.iter().filter_map(Part::text).map(str::len).sum();
        let calls: usize = self.tool_calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
        parts + calls + self.reasoning.as_ref().map_or(0, String::len)
    }
}

/// A message as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    role: Role,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<WireCall>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "content must be a text or a list of parts of type text, image or audio")]
enum Content {
    Text(String),
    Parts(Vec<WirePart>),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireCall {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", default)]
    kind: CallKind,
    function: WireFunction,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CallKind {
    #[default]
    Function,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireFunction {
    name: String,
    arguments: Value,
}

impl From<Message> for Wire {
    fn from(message: Message) -> Self {
        let content = match message.parts.as_slice() {
            [] => None,
            [Part::Text(text)] => Some(Content::Text(text.clone())),
            parts => Some(Content::Parts(parts.iter().cloned().map(WirePart::from).collect())),
        };
        let call = |ToolCall { id, name, arguments }| {
            let function = WireFunction { name, arguments: Value::String(arguments) };
            WireCall { id, kind: CallKind::Function, function }
        };
        let calls: Vec<WireCall> = message.tool_calls.into_iter().map(call).collect();
        Self {
            role: message.role,
            content,
            reasoning_content: message.reasoning,
            tool_calls: Some(calls).filter(|calls| !calls.is_empty()),
            tool_call_id: message.tool_call_id,
            name: message.name,
        }
    }
}

impl TryFrom<Wire> for Message {
    type Error = Error;

    fn try_from(wire: Wire) -> Result<Self> {
        let parts = match wire.content {
            None => Vec::new(),
            Some(Content::Text(text)) => vec![Part::Text(text)],
            Some(Content::Parts(parts)) => parts.into_iter().map(Part::from).collect(),
        };
        let call = |WireCall { id, function: WireFunction { name, arguments }, .. }| ToolCall {
            id,
            name,
            arguments: arguments_text(arguments),
        };
        let message = Self {
            role: wire.role,
            parts,
            reasoning: wire.reasoning_content,
            tool_calls: wire.tool_calls.unwrap_or_default().into_iter().map(call).collect(),
            tool_call_id: wire.tool_call_id,
            name: wire.name,
        };
        message.check()?;
        Ok(message)
    }
}

/// Returns arguments as text. In `OpenAI`'s format they are a text; other programs send an object.
fn arguments_text(arguments: Value) -> String {
    match arguments {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Result<Message, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn content_is_a_text_parts_or_null() {
        assert_eq!(read(json!({"role": "user", "content": "a"})), Ok(Message::user("a")));
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let message = read(json!({"role": "user", "content": parts})).expect("two parts");
        assert_eq!((message.parts.len(), message.text().as_str()), (2, "a\nb"));
        let call = json!({"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}});
        let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        assert_eq!(read(message).expect("a call needs no content").tool_calls[0].name, "add");
    }

    #[test]
    fn what_is_written_is_read_again() {
        let image = json!({"width": 1, "height": 1, "rgb": "AAEC"});
        let arguments = json!({"b": 1, "a": [2.5]});
        let call = json!({"id": "1", "function": {"name": "add", "arguments": arguments}});
        for given in [
            json!({"role": "system", "content": ""}),
            json!({"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}),
            json!({"role": "assistant", "tool_calls": [call]}),
            json!({"role": "tool", "content": "3", "tool_call_id": "1", "name": "add"}),
            json!({"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "?"}]}),
        ] {
            let message = read(given.clone()).expect("it is valid");
            let written = serde_json::to_value(&message).expect("it has a form");
            assert_eq!(read(written), Ok(message), "{given}");
        }
    }

    #[test]
    fn arguments_that_are_an_object_keep_their_numbers() {
        let long = "123456789012345678901234567890";
        let call =
            format!(r#"{{"function": {{"name": "add", "arguments": {{"a": {long}, "b": [1e5, 1.50]}}}}}}"#);
        let message = format!(r#"{{"role": "assistant", "tool_calls": [{call}]}}"#);
        let message: Message = serde_json::from_str(&message).expect("valid");
        assert_eq!(message.tool_calls[0].arguments, format!(r#"{{"a":{long},"b":[1e5,1.50]}}"#));
    }

    #[test]
    fn what_has_no_meaning_is_refused_by_name() {
        let image = json!({"width": 1, "height": 1, "rgb": "AAEC"});
        let call = json!([{"function": {"name": "add", "arguments": {}}}]);
        for (wrong, word) in [
            (json!({"role": "wizard", "content": "a"}), "wizard"),
            (json!({"role": "user", "content": "a", "mood": 1}), "mood"),
            (json!({"role": "user"}), "content"),
            (json!({"role": "user", "content": [{"type": "image_url"}]}), "content"),
            (json!({"role": "system", "content": [{"type": "image", "image": image}]}), "image"),
            (json!({"role": "user", "content": "a", "reasoning_content": "b"}), "reasoning_content"),
            (json!({"role": "user", "content": "a", "tool_calls": call}), "tool_calls"),
            (json!({"role": "user", "content": "a", "tool_call_id": "1"}), "tool_call_id"),
            (json!({"role": "user", "content": "a", "name": "Ann"}), "name"),
        ] {
            let message = read(wrong).expect_err(word);
            assert!(message.contains(word), "{word}: {message}");
        }
    }
}
