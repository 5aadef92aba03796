//! Documents and search results that a client sends as text.

use mlx_json::Value;

use super::{required, texts};
use crate::error::ApiError;
use crate::fields::Fields;

/// Takes the fields of a block of type `document`.
pub(super) fn document(fields: &mut Fields) -> Result<String, ApiError> {
    let (title, context) = (fields.take::<String>("title")?, fields.take::<String>("context")?);
    fields.value("citations");
    let path = fields.name("source");
    let mut source = Fields::nested(&path, required(fields, "source")?)?;
    let kind: String = required(&mut source, "type")?;
    let text = match kind.as_str() {
        "text" => {
            source.value("media_type");
            required(&mut source, "data")?
        }
        "content" => texts(required::<Value>(&mut source, "content")?, &source.name("content"))?.join("\n"),
        _ => {
            let message = format!("is {kind:?}; it must be text or content");
            return Err(ApiError::unsupported(source.name("type"), message));
        }
    };
    source.end()?;
    let title = title.map_or(String::new(), |title| format!(" title=\"{title}\""));
    let context = context.map_or(String::new(), |context| context + "\n");
    Ok(format!("<document{title}>\n{context}{text}\n</document>"))
}

/// Takes the fields of a block of type `search_result`.
pub(super) fn search_result(fields: &mut Fields) -> Result<String, ApiError> {
    fields.value("citations");
    let (source, title): (String, String) = (required(fields, "source")?, required(fields, "title")?);
    let text = texts(required::<Value>(fields, "content")?, &fields.name("content"))?.join("\n");
    Ok(format!("<search_result source=\"{source}\" title=\"{title}\">\n{text}\n</search_result>"))
}
