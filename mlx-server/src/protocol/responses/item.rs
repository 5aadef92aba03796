//! Reads the items of a conversation strictly. Errors name the path.

use chat_format::{Part, Role};
use mlx_json::Value;
use serde_json::json;

use super::mcp_item::McpItem;
use super::part::{content, required_string};
use crate::error::ApiError;
use crate::field_value::kind;
use crate::fields::Fields;

/// The maximum number of items per conversation. Like messages, each item takes memory in the template.
const MAX_ITEMS: usize = 1 << 16;

/// One item.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    /// A message.
    Message { role: Role, parts: Vec<Part> },
    /// Reasoning of the model.
    Reasoning(String),
    /// A tool call.
    Call { call_id: String, name: String, namespace: Option<String>, arguments: Arguments },
    /// The result of a tool call.
    Output { call_id: String, parts: Vec<Part> },
    /// An item of an MCP server.
    Mcp(McpItem),
}

/// The arguments of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Arguments {
    /// Arguments of a function: JSON text, as the model generated it.
    Json(String),
    /// Arguments of a custom tool: any text.
    Text(String),
}

/// An item of the request, or a reference to a stored item.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum InputItem {
    /// The item: its JSON, and its parsed form.
    Item(Value, Item),
    /// The id of an item of an earlier response, and the path of the reference.
    Reference(String, String),
}

/// Reads `input`: a string, or a list of items.
pub(crate) fn read(input: Option<Value>) -> Result<Vec<InputItem>, ApiError> {
    match input {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![message(text)]),
        Some(Value::Array(items)) if items.len() > MAX_ITEMS => {
            let message = format!("has {} items; at most {MAX_ITEMS} are allowed", items.len());
            Err(ApiError::field("input", message))
        }
        Some(Value::Array(items)) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| input_item(item, &format!("input[{index}]")))
            .collect(),
        Some(other) => Err(ApiError::field(
            "input",
            format!("is {}; it must be a string or a list of items", kind(&other)),
        )),
    }
}

/// Returns a user message with this text.
fn message(text: String) -> InputItem {
    let content = json!([{"type": "input_text", "text": text}]);
    let value = json!({"type": "message", "role": "user", "content": content}).into();
    InputItem::Item(value, Item::Message { role: Role::User, parts: vec![Part::Text(text)] })
}

fn input_item(value: Value, path: &str) -> Result<InputItem, ApiError> {
    let mut fields = Fields::nested(path, value.clone())?;
    let kind: Option<String> = fields.take("type")?;
    if kind.as_deref() == Some("item_reference") || kind.is_none() && is_reference(&value) {
        let id = required_string(&mut fields, "id")?;
        fields.end()?;
        return Ok(InputItem::Reference(id, path.to_owned()));
    }
    let item = read_item(kind.as_deref(), fields)?;
    Ok(InputItem::Item(value, item))
}

/// Returns true for an object with only an id, which is a reference too.
fn is_reference(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.len() == 1 && object.contains_key("id"))
}

/// Reads a stored item.
pub(crate) fn from_stored(value: &Value) -> Result<Item, ApiError> {
    let mut fields = Fields::nested("previous_response_id", value.clone())?;
    let kind: Option<String> = fields.take("type")?;
    read_item(kind.as_deref(), fields)
}

fn read_item(kind: Option<&str>, mut fields: Fields) -> Result<Item, ApiError> {
    // The id and the status are not shown to the model.
    let id: Option<String> = fields.take("id")?;
    fields.take::<String>("status")?;
    let item = match kind {
        None | Some("message") => {
            fields.take::<String>("phase")?;
            let role = role(&mut fields)?;
            let path = fields.name("content");
            let parts = content(fields.value("content"), &path)?;
            if !matches!(role, Role::User) && parts.iter().any(|part| part.text().is_none()) {
                let message = "has an image or audio; only messages of role user may have these";
                return Err(ApiError::field(path, message));
            }
            Item::Message { role, parts }
        }
        Some("reasoning") => Item::Reasoning(reasoning(&mut fields)?),
        Some("function_call") => Item::Call {
            call_id: required_string(&mut fields, "call_id")?,
            name: required_string(&mut fields, "name")?,
            namespace: fields.take("namespace")?,
            arguments: Arguments::Json(required_string(&mut fields, "arguments")?),
        },
        Some("custom_tool_call") => Item::Call {
            call_id: required_string(&mut fields, "call_id")?,
            name: required_string(&mut fields, "name")?,
            namespace: fields.take("namespace")?,
            arguments: Arguments::Text(required_string(&mut fields, "input")?),
        },
        Some("function_call_output" | "custom_tool_call_output") => {
            let call_id = required_string(&mut fields, "call_id")?;
            fields.take::<String>("name")?;
            Item::Output { call_id, parts: content(fields.value("output"), &fields.name("output"))? }
        }
        Some(other) => {
            let served = McpItem::read(other, id.as_deref(), &mut fields)?;
            Item::Mcp(served.ok_or_else(|| {
                let message = format!("is {other:?}, which is not supported");
                ApiError::unsupported(fields.name("type"), message)
            })?)
        }
    };
    fields.end()?;
    Ok(item)
}

fn role(fields: &mut Fields) -> Result<Role, ApiError> {
    let name: Option<String> = fields.take("role")?;
    match name.as_deref() {
        Some("system") => Ok(Role::System),
        Some("developer") => Ok(Role::Developer),
        Some("user") => Ok(Role::User),
        Some("assistant") => Ok(Role::Assistant),
        Some(_) => Err(ApiError::field(fields.name("role"), "must be system, developer, user or assistant")),
        None => Err(ApiError::field(fields.name("role"), "is missing")),
    }
}

/// Reads the text of reasoning, or its summary if there is no text.
fn reasoning(fields: &mut Fields) -> Result<String, ApiError> {
    let path = fields.name("encrypted_content");
    if fields.take::<String>("encrypted_content")?.is_some_and(|text| !text.is_empty()) {
        let message = "was encrypted by another server and cannot be read here; leave the item out";
        return Err(ApiError::unsupported(path, message));
    }
    let mut text = |field: &str| -> Result<String, ApiError> {
        let path = fields.name(field);
        let parts = fields.value(field).map_or(Ok(Vec::new()), |parts| content(Some(parts), &path))?;
        let texts: Option<Vec<&str>> = parts.iter().map(Part::text).collect();
        let texts =
            texts.ok_or_else(|| ApiError::field(path, "has an image or audio; reasoning must be text"))?;
        Ok(texts.join("\n"))
    };
    let (content_text, summary) = (text("content")?, text("summary")?);
    Ok(if content_text.is_empty() { summary } else { content_text })
}

#[cfg(test)]
mod tests {
    use chat_format::Image;

    use super::*;
    use crate::fields::value as json;

    fn one(item: &Value) -> Result<InputItem, ApiError> {
        read(Some(json!([item]))).map(|mut items| items.remove(0))
    }

    fn item(value: &Value) -> Item {
        match one(value) {
            Ok(InputItem::Item(_, item)) => item,
            other => panic!("{value}: {other:?}"),
        }
    }

    #[test]
    fn forms_of_one_message_are_equal() {
        let text = Item::Message { role: Role::User, parts: vec![Part::Text("a\nb".into())] };
        for content in [
            json!("a\nb"),
            json!([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]),
            json!([{"type": "output_text", "text": "a\nb", "annotations": [], "logprobs": []}]),
        ] {
            assert_eq!(item(&json!({"role": "user", "content": content})), text);
            assert_eq!(
                item(&json!({"type": "message", "id": "msg_1", "role": "user", "content": content})),
                text
            );
        }
        let InputItem::Item(_, from_text) = &read(Some(json!("a\nb"))).expect("a text")[0] else { panic!() };
        assert_eq!(*from_text, text);
    }

    #[test]
    fn pictures_stand_between_texts() {
        let text = |text: &str| json!({"type": "input_text", "text": text});
        let image =
            json!({"type": "input_image", "image_url": "data:image/png;base64,AQID", "detail": "auto"});
        let content = json!([text("a"), text("b"), image, text("c")]);
        let parts =
            vec![Part::Text("a\nb".into()), Part::Image(Image::file(vec![1, 2, 3])), Part::Text("c".into())];
        let message = Item::Message { role: Role::User, parts: parts.clone() };
        assert_eq!(item(&json!({"role": "user", "content": content})), message);
        let output = json!({"type": "function_call_output", "call_id": "1", "output": content});
        assert_eq!(item(&output), Item::Output { call_id: "1".into(), parts });
    }

    #[test]
    fn items_of_a_turn_are_read() {
        let parts = json!([{"type": "reasoning_text", "text": "hm"}]);
        let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": parts, "encrypted_content": null});
        assert_eq!(item(&reasoning), Item::Reasoning("hm".into()));
        let call = json!({"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "call_1", "name": "add", "namespace": "n", "arguments": "{}"});
        let expected = Item::Call {
            call_id: "call_1".into(),
            name: "add".into(),
            namespace: Some("n".into()),
            arguments: Arguments::Json("{}".into()),
        };
        assert_eq!(item(&call), expected);
        let output = json!({"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "3"}]});
        let parts = vec![Part::Text("3".into())];
        assert_eq!(item(&output), Item::Output { call_id: "call_1".into(), parts });
        for reference in [json!({"type": "item_reference", "id": "rs_1"}), json!({"id": "rs_1"})] {
            assert_eq!(one(&reference), Ok(InputItem::Reference("rs_1".into(), "input[0]".into())));
        }
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        let image = |url: &str| json!([{"type": "input_image", "image_url": url}]);
        for (item, name) in [
            (json!({"role": "wizard", "content": "b"}), "input[0].role"),
            (json!({"role": "user"}), "input[0].content"),
            (json!({"role": "user", "content": [{"type": "input_file"}]}), "input[0].content[0].type"),
            (
                json!({"role": "user", "content": [{"type": "input_audio"}]}),
                "input[0].content[0].input_audio",
            ),
            (json!({"role": "user", "content": image("https://a.b/c")}), "input[0].content[0].image_url"),
            (json!({"role": "system", "content": image("data:;base64,AQID")}), "input[0].content"),
            (
                json!({"role": "user", "content": [{"type": "input_image", "file_id": "1"}]}),
                "input[0].content[0].file_id",
            ),
            (json!({"type": "reasoning", "content": image("data:;base64,AQID")}), "input[0].content"),
            (json!({"role": "user", "content": "b", "mood": 1}), "input[0].mood"),
            (json!({"type": "mcp_call", "id": "1"}), "input[0].server_label"),
            (json!({"type": "mcp_approval_response", "approval_request_id": "1"}), "input[0].approve"),
            (json!({"type": "shell_call", "id": "1"}), "input[0].type"),
            (json!({"type": "function_call", "call_id": "1", "name": "a"}), "input[0].arguments"),
            (json!({"type": "function_call_output", "output": "a"}), "input[0].call_id"),
            (json!({"type": "reasoning", "encrypted_content": "x"}), "input[0].encrypted_content"),
            (json!({"type": "item_reference"}), "input[0].id"),
            (json!("hello"), "input[0]"),
        ] {
            assert_eq!(one(&item).expect_err(name).param(), Some(name));
        }
    }
}
