//! The forms that a schema allows for a value. Texts are written literally, and other values as JSON.

use serde_json::{Value, json};

use crate::json_type::resolved;

/// A possible form of a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    /// Any text.
    Text,
    /// Exactly this text.
    Choice(String),
    /// A value that is not a text, and its schema.
    Json(Value),
}

/// Keywords that a grammar for text cannot enforce.
const UNENFORCED: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];

/// Returns the forms that a schema inside `root` allows, or the reason why it cannot be enforced.
pub(super) fn shapes(schema: &Value, root: &Value) -> Result<Vec<Shape>, String> {
    let schema = resolved(schema, root);
    for key in ["anyOf", "oneOf"] {
        if let Some(others) = schema[key].as_array() {
            let mut all = Vec::new();
            for other in others {
                all.extend(shapes(other, root)?);
            }
            return Ok(if all.contains(&Shape::Text) { vec![Shape::Text] } else { all });
        }
    }
    if let Some(values) = schema["enum"].as_array() {
        return Ok(values.iter().map(choice).collect());
    }
    if let Some(value) = schema.get("const") {
        return Ok(vec![choice(value)]);
    }
    let may_be_text = match &schema["type"] {
        Value::String(name) => name == "string",
        Value::Array(names) => names.iter().any(|name| name == "string"),
        _ => {
            schema.get("properties").is_none()
                && schema.get("items").is_none()
                && schema.get("allOf").is_none()
        }
    };
    if !may_be_text {
        return Ok(vec![Shape::Json(property_schema(schema, root))]);
    }
    match UNENFORCED.iter().find(|key| schema.get(**key).is_some()) {
        Some(key) => Err(format!("has {key}, which cannot be enforced for a text in this model's format")),
        None => Ok(vec![Shape::Text]),
    }
}

fn choice(value: &Value) -> Shape {
    match value {
        Value::String(text) => Shape::Choice(text.clone()),
        other => Shape::Json(json!({"const": other})),
    }
}

/// Converts a schema inside `root` to a self-contained one, with the definitions that it refers to.
pub(super) fn property_schema(schema: &Value, root: &Value) -> Value {
    let mut own = schema.clone();
    if let Some(object) = own.as_object_mut() {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key) {
                object.insert(key.to_owned(), definitions.clone());
            }
        }
    }
    own
}
