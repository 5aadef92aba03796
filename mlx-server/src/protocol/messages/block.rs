//! Blocks, the content of messages and tool results. They are read strictly, and errors name the path.

mod document;

use chat_format::{Image, Part, Role, ToolCall, Tools};
use mlx_json::{Map, Value};

use super::signature;
use crate::error::ApiError;
use crate::field_value::FieldValue;
use crate::fields::Fields;
use crate::protocol::content::{PathNotation, joined};
use crate::protocol::image::{expect_image, image_from_base64, image_from_url};

/// A block with its path in the request.
pub(super) type BlockWithPath = (String, Block);

/// A block of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Block {
    /// Text, or a document as text.
    Text(String),
    /// An image.
    Image(Image),
    /// The model's thinking. Empty if its text is unknown.
    Thought(String),
    /// A tool call.
    Call(ToolCall),
    /// The result of a call.
    Result {
        /// The id of the call.
        id: String,
        /// The output of the tool.
        parts: Vec<Part>,
    },
}

/// Takes a required field.
pub(super) fn required<T: FieldValue>(fields: &mut Fields, field: &str) -> Result<T, ApiError> {
    let value = fields.take(field)?;
    value.ok_or_else(|| ApiError::field(fields.name(field), "is missing"))
}

/// Reads the blocks of a message. A string is read as one text block.
pub(super) fn read(
    content: Option<Value>,
    path: &str,
    role: Role,
    tools: &Tools,
) -> Result<Vec<BlockWithPath>, ApiError> {
    let text = |text| (path.to_owned(), Block::Text(text));
    let read = |block, path: &str| Ok((path.to_owned(), read_one(block, path, role, tools)?));
    let blocks = PathNotation::Dots.content(content, path, text, read)?;
    blocks.ok_or_else(|| ApiError::field(path, "is missing"))
}

/// Reads content that may have only text blocks.
pub(super) fn texts(content: Value, path: &str) -> Result<Vec<String>, ApiError> {
    let text = |(_, block)| if let Block::Text(text) = block { Some(text) } else { None };
    // System messages may have only text blocks.
    let blocks = read(Some(content), path, Role::System, &Tools::default())?;
    Ok(blocks.into_iter().filter_map(text).collect())
}

fn read_one(block: Value, path: &str, role: Role, tools: &Tools) -> Result<Block, ApiError> {
    let mut fields = Fields::nested(path, block)?;
    let kind = take_type(&mut fields)?;
    let block = match (kind.as_str(), role) {
        ("text", _) => Block::Text(text(&mut fields)?),
        ("thinking", Role::Assistant) => {
            let signature = fields.take::<String>("signature")?;
            Block::Thought(signature::thought(required(&mut fields, "thinking")?, signature.as_deref()))
        }
        // Only the server that encrypted it can read it.
        ("redacted_thinking", Role::Assistant) => {
            required::<String>(&mut fields, "data")?;
            Block::Thought(String::new())
        }
        ("tool_use", Role::Assistant) => Block::Call(call(&mut fields)?),
        ("tool_result", Role::User) => result(&mut fields, tools)?,
        ("image", Role::User) => Block::Image(image(&mut fields)?),
        ("document", Role::User) => Block::Text(document::document(&mut fields)?),
        ("search_result", Role::User) => Block::Text(document::search_result(&mut fields)?),
        _ => return Err(unsupported_block(&fields, &kind, &format!("a message of role {}", name(role)))),
    };
    fields.end()?;
    Ok(block)
}

/// Takes the fields that all blocks have: the type, and `cache_control`, which is ignored because caching is automatic.
fn take_type(fields: &mut Fields) -> Result<String, ApiError> {
    fields.value("cache_control");
    required(fields, "type")
}

fn text(fields: &mut Fields) -> Result<String, ApiError> {
    // Citations of an earlier answer, which its text already contains.
    fields.value("citations");
    required(fields, "text")
}

fn call(fields: &mut Fields) -> Result<ToolCall, ApiError> {
    // The caller is always the model.
    fields.value("caller");
    let (id, name) = (required(fields, "id")?, required(fields, "name")?);
    let input: Map<String, Value> = required(fields, "input")?;
    Ok(ToolCall { id: Some(id), name, arguments: Value::Object(input).to_string() })
}

fn result(fields: &mut Fields, tools: &Tools) -> Result<Block, ApiError> {
    let id = required(fields, "tool_use_id")?;
    let is_error = fields.take::<bool>("is_error")?.unwrap_or(false);
    let path = fields.name("content");
    let read = |block, path: &str| part_of_result(block, path, tools);
    let parts = PathNotation::Dots.content(fields.value("content"), &path, Part::Text, read)?;
    let mut parts = joined(parts.unwrap_or_default());
    if !matches!(parts.first(), Some(Part::Text(_))) && (is_error || parts.is_empty()) {
        parts.insert(0, Part::Text(String::new()));
    }
    if let Some(Part::Text(text)) = parts.first_mut().filter(|_| is_error) {
        text.insert_str(0, "Error: ");
    }
    Ok(Block::Result { id, parts })
}

fn part_of_result(block: Value, path: &str, tools: &Tools) -> Result<Part, ApiError> {
    let mut fields = Fields::nested(path, block)?;
    let kind = take_type(&mut fields)?;
    let part = match kind.as_str() {
        "text" => Part::Text(text(&mut fields)?),
        "image" => Part::Image(image(&mut fields)?),
        "document" => Part::Text(document::document(&mut fields)?),
        "search_result" => Part::Text(document::search_result(&mut fields)?),
        "tool_reference" => Part::Text(definition(&mut fields, tools)?),
        _ => return Err(unsupported_block(&fields, &kind, "a tool result")),
    };
    fields.end()?;
    Ok(part)
}

/// Takes the source of an image.
fn image(fields: &mut Fields) -> Result<Image, ApiError> {
    let path = fields.name("source");
    let mut source = Fields::nested(&path, required(fields, "source")?)?;
    let kind: String = required(&mut source, "type")?;
    let image = match kind.as_str() {
        "base64" => {
            let media_type: String = required(&mut source, "media_type")?;
            expect_image(&media_type, &source.name("media_type"))?;
            image_from_base64(&required::<String>(&mut source, "data")?, &source.name("data"))?
        }
        "url" => image_from_url(&required::<String>(&mut source, "url")?, &source.name("url"))?,
        _ => {
            let message = format!("is {kind:?}; it must be base64 or url");
            return Err(ApiError::unsupported(source.name("type"), message));
        }
    };
    source.end()?;
    Ok(image)
}

/// Returns the definition of a tool that a result refers to.
fn definition(fields: &mut Fields, tools: &Tools) -> Result<String, ApiError> {
    let name: String = required(fields, "tool_name")?;
    let tool = tools.get(&name).ok_or_else(|| {
        ApiError::field(fields.name("tool_name"), format!("is {name:?}, but tools has no such tool"))
    })?;
    Ok(tool.definition())
}

fn unsupported_block(fields: &Fields, kind: &str, context: &str) -> ApiError {
    let message = format!("is {kind:?}, which is not supported in {context}");
    ApiError::unsupported(fields.name("type"), message)
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Assistant => "assistant",
        Role::User | Role::Tool => "user",
        Role::System | Role::Developer => "system",
    }
}
