//! The messages of a chat in Ollama's API. Its calls have no ids: results are matched by id if given, by tool name, or by order.

use chat_format::{Image, Message, Part, Role, ToolCall};
use mlx_json::{Map, Value};

use crate::error::ApiError;
use crate::field_value::kind;
use crate::fields::Fields;
use crate::protocol::image;

/// Reads `messages`. The list may be empty, which asks the server to load the model.
pub(crate) fn read(messages: Option<Value>) -> Result<Vec<Message>, ApiError> {
    let Some(Value::Array(list)) = messages else {
        return Err(ApiError::field("messages", "is missing; give a list of messages"));
    };
    let mut reader = Reader::default();
    for (index, message) in list.into_iter().enumerate() {
        reader.read(message, &format!("messages[{index}]"))?;
    }
    Ok(reader.messages)
}

/// Reads the images of the field at `path`.
pub(super) fn images(given: Option<Vec<String>>, path: &str) -> Result<Vec<Image>, ApiError> {
    let given = given.unwrap_or_default();
    let images = given.iter().enumerate();
    images.map(|(index, data)| image::image_from_base64(data, &format!("{path}[{index}]"))).collect()
}

#[derive(Default)]
struct Reader {
    messages: Vec<Message>,
    /// Calls without a result, oldest first: their ids and tool names.
    pending_calls: Vec<(String, String)>,
    /// The number of calls so far.
    calls: usize,
}

impl Reader {
    fn read(&mut self, message: Value, path: &str) -> Result<(), ApiError> {
        let mut fields = Fields::nested(path, message)?;
        let role: Option<String> = fields.take("role")?;
        let text: String = fields.take("content")?.unwrap_or_default();
        let reasoning: Option<String> = fields.take("thinking")?;
        let images = images(fields.take("images")?, &fields.name("images"))?;
        let calls = self.take_calls(&mut fields)?;
        let tool: Option<String> = fields.take("tool_name")?;
        let tool = tool.or(fields.take("name")?);
        let id: Option<String> = fields.take("tool_call_id")?;
        let role = match role.as_deref() {
            Some("system") => Role::System,
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("tool") => Role::Tool,
            _ => return Err(ApiError::field(fields.name("role"), "must be system, user, assistant or tool")),
        };
        let mut message = Message { tool_calls: calls, ..Message::new(role, text) };
        // Ollama puts images before the text.
        message.parts.splice(0..0, images.into_iter().map(Part::Image));
        match role {
            Role::Assistant => message.reasoning = reasoning.filter(|text| !text.is_empty()),
            Role::Tool => {
                // Some clients send results without their calls.
                let (id, name) = self.take_call(tool.as_deref(), id).unzip();
                (message.tool_call_id, message.name) = (id, name.or(tool));
            }
            _ => {}
        }
        if role == Role::Assistant && message.text().is_empty() && !message.tool_calls.is_empty() {
            message.parts = Vec::<Part>::new();
        }
        message.check().map_err(|error| ApiError::from(error).with_field(&fields.name("content")))?;
        fields.end()?;
        self.messages.push(message);
        Ok(())
    }

    fn take_calls(&mut self, fields: &mut Fields) -> Result<Vec<ToolCall>, ApiError> {
        let path = fields.name("tool_calls");
        let given: Vec<Value> = fields.take("tool_calls")?.unwrap_or_default();
        if !given.is_empty() {
            self.pending_calls.clear();
        }
        given
            .into_iter()
            .enumerate()
            .map(|(index, call)| self.call(call, &format!("{path}[{index}]")))
            .collect()
    }

    fn call(&mut self, call: Value, path: &str) -> Result<ToolCall, ApiError> {
        let mut fields = Fields::nested(path, call)?;
        let given: Option<String> = fields.take("id")?;
        fields.take::<String>("type")?;
        let function = fields.value("function").unwrap_or_default();
        let mut function = Fields::nested(&fields.name("function"), function)?;
        function.take::<usize>("index")?;
        let name: Option<String> = function.take("name")?;
        let name = name.ok_or_else(|| ApiError::field(function.name("name"), "is missing"))?;
        let arguments = match function.value("arguments") {
            None => Value::Object(Map::new()),
            Some(object @ Value::Object(_)) => object,
            Some(other) => {
                let message = format!("is {}; it must be an object", kind(&other));
                return Err(ApiError::field(function.name("arguments"), message));
            }
        };
        function.end()?;
        fields.end()?;
        let id = given.unwrap_or_else(|| format!("call_{}", self.calls));
        self.calls += 1;
        self.pending_calls.push((id.clone(), name.clone()));
        Ok(ToolCall { id: Some(id), name, arguments: arguments.to_string() })
    }

    /// Returns the call of a result: by its id, by the name of its tool, or the oldest pending one.
    fn take_call(&mut self, tool: Option<&str>, id: Option<String>) -> Option<(String, String)> {
        let by_id = id.and_then(|id| self.pending_calls.iter().position(|(other, _)| *other == id));
        let by_name = tool.and_then(|tool| self.pending_calls.iter().position(|(_, name)| name == tool));
        let index = by_id.or(by_name).unwrap_or(0);
        (index < self.pending_calls.len()).then(|| self.pending_calls.remove(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    #[test]
    fn pictures_stand_before_the_text() {
        let messages = read(Some(json!([{"role": "user", "content": "a", "images": ["AQID", "BAU="]}])));
        let file = |bytes: &[u8]| Part::Image(Image::file(bytes.to_vec()));
        let expected = [file(&[1, 2, 3]), file(&[4, 5]), Part::Text("a".into())];
        assert_eq!(messages.expect("valid")[0].parts, expected);
    }

    #[test]
    fn results_belong_to_calls_by_name_or_order() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"a": 1}}});
        let messages = read(Some(json!([
            {"role": "user", "content": "q", "images": []},
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call("add"), call("sub")]},
            {"role": "tool", "content": "1", "tool_name": "sub"},
            {"role": "tool", "content": "2"},
            {"role": "tool", "content": "3", "tool_name": "lost"},
        ])));
        let messages = messages.expect("valid");
        assert_eq!(messages[1].reasoning.as_deref(), Some("hm"));
        assert_eq!(messages[1].tool_calls[0].arguments, "{\"a\":1}");
        let result =
            |index: usize| (messages[index].tool_call_id.as_deref(), messages[index].name.as_deref());
        assert_eq!(result(2), (Some("call_1"), Some("sub")));
        assert_eq!(result(3), (Some("call_0"), Some("add")));
        assert_eq!(result(4), (None, Some("lost")), "its call was not sent");
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (message, param) in [
            (json!({"role": "user", "content": "a", "images": ["?"]}), "messages[0].images[0]"),
            (json!({"role": "user", "content": "a", "images": [5]}), "messages[0].images"),
            (json!({"role": "system", "content": "a", "images": ["AQID"]}), "messages[0].content"),
            (json!({"role": "wizard", "content": "a"}), "messages[0].role"),
            (json!({"role": "user", "content": "a", "mood": 1}), "messages[0].mood"),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            assert_eq!(read(Some(json!([message]))).expect_err(param).param(), Some(param));
        }
    }
}
