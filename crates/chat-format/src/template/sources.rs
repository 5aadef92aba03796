//! Finds the chat templates of a model folder.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::text::config::Fields;
use crate::text::config::read_optional;

/// The name of the default template.
pub(super) const DEFAULT: &str = "default";

/// A template read from a file.
pub(super) struct Source {
    pub(super) name: String,
    /// The name of the file. Empty if there is none.
    pub(super) file: String,
    pub(super) text: String,
}

/// Returns all templates of a folder. `configured` is the `chat_template` of its `tokenizer_config.json`.
pub(super) fn of_folder(folder: &Path, configured: Option<&Value>) -> Result<Vec<Source>> {
    let mut sources = files(folder)?;
    if sources.is_empty() {
        let path = folder.join("tokenizer_config.json");
        sources = configured.map_or(Ok(Vec::new()), |value| listed(value, &path))?;
    }
    if sources.is_empty() {
        let path = folder.join("chat_template.json");
        let fields = Fields::read_optional(&path)?;
        let template = fields.as_ref().and_then(|fields| fields.get("chat_template"));
        sources = template.map_or(Ok(Vec::new()), |value| listed(value, &path))?;
    }
    Ok(sources)
}

/// Reads `chat_template.jinja` and additional templates.
fn files(folder: &Path) -> Result<Vec<Source>> {
    let read = |path: &Path, name: &str| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = read_optional(path)?;
        Ok::<_, Error>(text.map(|text| Source { name: name.to_owned(), file, text }))
    };
    let mut sources: Vec<_> = read(&folder.join("chat_template.jinja"), DEFAULT)?.into_iter().collect();
    let folder = folder.join("additional_chat_templates");
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(sources);
        }
        Err(error) => return Err(Error::io(folder, error)),
    };
    for entry in entries {
        let path = entry.map_err(|error| Error::io(&folder, error))?.path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        if path.extension().is_some_and(|extension| extension == "jinja") {
            sources.extend(read(&path, name)?);
        }
    }
    Ok(sources)
}

/// Returns the templates of a `chat_template` key: a string, a list of `{name, template}`, or an object of
/// them.
fn listed(value: &Value, path: &Path) -> Result<Vec<Source>> {
    let wrong = || Error::file(path, "chat_template is neither a string nor a list of {name, template}");
    let text = |value: &Value| value.as_str().map(str::to_string).ok_or_else(wrong);
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let source = |name: String, text: String| Source { name, file: file.clone(), text };
    match value {
        Value::String(text) => Ok(vec![source(DEFAULT.to_owned(), text.clone())]),
        Value::Array(entries) => {
            entries.iter().map(|entry| Ok(source(text(&entry["name"])?, text(&entry["template"])?))).collect()
        }
        Value::Object(entries) => {
            entries.iter().map(|(name, value)| Ok(source(name.clone(), text(value)?))).collect()
        }
        _ => Err(wrong()),
    }
}
