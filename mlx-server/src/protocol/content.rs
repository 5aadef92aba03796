//! Shared reading of message content: a string or a list of items, each with its path in the request.

use chat_format::Part;
use mlx_json::Value;

use crate::error::ApiError;
use crate::field_value::kind;

/// The notation of list indexes in the paths of errors.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PathNotation {
    /// OpenAI's notation: `messages[0].content[1]`.
    Brackets,
    /// Anthropic's notation: `messages.0.content.1`.
    Dots,
}

impl PathNotation {
    /// Returns the items of the list at `path`, each with its path.
    pub(crate) fn items(self, path: &str, list: Vec<Value>) -> impl Iterator<Item = (String, Value)> + use<> {
        let path = path.to_owned();
        list.into_iter().enumerate().map(move |(index, item)| match self {
            Self::Brackets => (format!("{path}[{index}]"), item),
            Self::Dots => (format!("{path}.{index}"), item),
        })
    }

    /// Reads content. A string becomes one item with `text`; a list becomes one item per entry with `read`. `None` if the content is absent.
    pub(crate) fn content<T>(
        self,
        content: Option<Value>,
        path: &str,
        text: impl FnOnce(String) -> T,
        read: impl Fn(Value, &str) -> Result<T, ApiError>,
    ) -> Result<Option<Vec<T>>, ApiError> {
        match content {
            None => Ok(None),
            Some(Value::String(string)) => Ok(Some(vec![text(string)])),
            Some(Value::Array(list)) => self
                .items(path, list)
                .map(|(path, item)| read(item, &path))
                .collect::<Result<_, _>>()
                .map(Some),
            Some(other) => {
                let message = format!("is {}; it must be a string or a list", kind(&other));
                Err(ApiError::field(path, message))
            }
        }
    }
}

/// Joins adjacent texts with line breaks, so that a list of texts equals one string with the same lines.
pub(crate) fn joined(parts: Vec<Part>) -> Vec<Part> {
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (Some(Part::Text(text)), Part::Text(more)) => {
                text.push('\n');
                text.push_str(&more);
            }
            (_, part) => joined.push(part),
        }
    }
    joined
}
