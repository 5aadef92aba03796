//! Custom tools, whose input is a text. For the model they are functions with one argument.

use mlx_json::Value;
use serde_json::json;

use super::item::Arguments;
use crate::error::ApiError;
use crate::fields::Fields;

/// The argument with the input of a custom tool.
pub(super) const INPUT: &str = "input";

/// Returns the arguments of an earlier call in the form that the model generated.
pub(crate) fn model_arguments(arguments: &Arguments) -> String {
    match arguments {
        Arguments::Json(text) => text.clone(),
        Arguments::Text(text) => json!({ INPUT: text }).to_string(),
    }
}

/// Returns the input of a custom tool from generated arguments. Truncated arguments are returned unchanged.
pub(crate) fn custom_input(arguments: &str) -> String {
    let object = mlx_json::parse(arguments.as_bytes()).ok().and_then(Value::into_object);
    match object.and_then(|mut object| object.shift_remove(INPUT)) {
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
        None => arguments.to_owned(),
    }
}

/// The format of the input.
pub(super) enum CustomFormat {
    Text,
    Regex(String),
    Lark(String),
}

/// Reads `format`.
pub(super) fn custom_format(format: Value, path: &str) -> Result<CustomFormat, ApiError> {
    let mut fields = Fields::nested(path, format)?;
    let kind: Option<String> = fields.take("type")?;
    let format = match kind.as_deref() {
        Some("text") => CustomFormat::Text,
        Some("grammar") => {
            let syntax: Option<String> = fields.take("syntax")?;
            let definition: Option<String> = fields.take("definition")?;
            let definition =
                definition.ok_or_else(|| ApiError::field(fields.name("definition"), "is missing"))?;
            match syntax.as_deref() {
                Some("lark") => CustomFormat::Lark(definition),
                Some("regex") => CustomFormat::Regex(definition),
                _ => return Err(ApiError::field(fields.name("syntax"), "must be lark or regex")),
            }
        }
        _ => return Err(ApiError::field(fields.name("type"), "must be text or grammar")),
    };
    fields.end()?;
    Ok(format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_becomes_an_argument_and_returns() {
        let text = "say \"a\"\n";
        assert_eq!(custom_input(&model_arguments(&Arguments::Text(text.into()))), text);
        assert_eq!(custom_input("{\"input\": \"cut"), "{\"input\": \"cut");
    }
}
