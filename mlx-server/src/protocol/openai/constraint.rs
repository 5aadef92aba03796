//! The fields that constrain an answer: `response_format` as in OpenAI's API, and `structured_outputs` as in vLLM's.

use chat_format::{ConstraintSpec, Grammar};
use mlx_json::{Map, Value};
use serde_json::json;

use crate::error::ApiError;
use crate::fields::{Fields, field_group};

field_group! {
    /// Constraints of the answer.
    pub(crate) struct ConstraintFields {
        /// `text`, `json_object` (any JSON object) or `json_schema` (JSON that matches `json_schema.schema`).
        #[schema(value_type = Object)]
        pub(crate) response_format: Value,
        /// One of `json` (a JSON schema), `regex`, `choice` (a list of strings) and `grammar` (Lark). Cannot be combined with `response_format`.
        #[schema(value_type = Object)]
        pub(crate) structured_outputs: Value,
    }
}

/// A constraint, and the name of its field.
pub(crate) type FieldConstraint = (ConstraintSpec, &'static str);

/// Takes the fields that constrain the answer.
pub(crate) fn read(fields: &mut Fields) -> Result<Option<FieldConstraint>, ApiError> {
    let ConstraintFields { response_format, structured_outputs } = ConstraintFields::read(fields)?;
    let format = response_format.map(format).transpose()?.flatten();
    let outputs = structured_outputs.map(outputs).transpose()?;
    match (format, outputs) {
        (Some(_), Some(_)) => {
            Err(ApiError::field("structured_outputs", "cannot be combined with response_format"))
        }
        (one, other) => Ok(one.or(other).map(|(grammar, field)| (grammar.into(), field))),
    }
}

fn format(given: Value) -> Result<Option<(Grammar, &'static str)>, ApiError> {
    let mut fields = Fields::nested("response_format", given)?;
    let kind: Option<String> = fields.take("type")?;
    let found = match kind.as_deref() {
        None => {
            return Err(ApiError::field(
                "response_format.type",
                "is missing; it must be text, json_object or json_schema",
            ));
        }
        Some("text") => None,
        // Clients of llama.cpp may give a schema here too.
        Some("json_object") => {
            let schema = fields.value("schema").map_or_else(|| json!({ "type": "object" }), Into::into);
            Some((Grammar::JsonSchema(schema), "response_format.schema"))
        }
        Some("json_schema") => {
            let inner = fields.value("json_schema").unwrap_or_else(|| Map::new().into());
            Some((Grammar::JsonSchema(named_schema(inner)?.into()), SCHEMA))
        }
        Some(other) => {
            let message = format!("is {other:?}; it must be text, json_object or json_schema");
            return Err(ApiError::unsupported("response_format.type", message));
        }
    };
    fields.end()?;
    Ok(found)
}

/// The path of the schema in OpenAI's API.
const SCHEMA: &str = "response_format.json_schema.schema";

/// Reads the schema in `json_schema`. It is always enforced; `strict`, name and description have no effect.
fn named_schema(given: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::nested("response_format.json_schema", given)?;
    fields.take::<String>("name")?;
    fields.take::<String>("description")?;
    fields.take::<bool>("strict")?;
    let schema = fields.value("schema").ok_or_else(|| ApiError::field(SCHEMA, "is missing"))?;
    fields.end()?;
    Ok(schema)
}

fn outputs(given: Value) -> Result<(Grammar, &'static str), ApiError> {
    let mut fields = Fields::nested("structured_outputs", given)?;
    let json = fields.value("json").map(schema_or_text).transpose()?;
    let (regex, choice) = (fields.take::<String>("regex")?, fields.take::<Vec<String>>("choice")?);
    let grammar = fields.take::<String>("grammar")?;
    fields.end()?;
    let given = [
        json.map(|schema| (Grammar::JsonSchema(schema.into()), "structured_outputs.json")),
        regex.map(|regex| (Grammar::Regex(regex), "structured_outputs.regex")),
        choice.map(|texts| (Grammar::Choices(texts), "structured_outputs.choice")),
        grammar.map(|grammar| (Grammar::Lark(grammar), "structured_outputs.grammar")),
    ];
    let mut given = given.into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(ApiError::field(
            "structured_outputs",
            "must have exactly one of json, regex, choice and grammar",
        )),
    }
}

/// Reads a schema. Like vLLM, accepts its text as well.
fn schema_or_text(given: Value) -> Result<Value, ApiError> {
    let Value::String(text) = given else { return Ok(given) };
    mlx_json::parse(text.as_bytes())
        .map_err(|error| ApiError::field("structured_outputs.json", format!("is not valid JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn constraint(request: &Value) -> Result<Option<FieldConstraint>, ApiError> {
        let mut fields = Fields::parse(request.to_string().as_bytes()).expect("an object");
        let given = read(&mut fields)?;
        fields.end()?;
        Ok(given)
    }

    #[test]
    fn every_form_becomes_a_grammar() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let of_schema = |field| Some((Grammar::JsonSchema(schema.clone().into()).into(), field));
        for (request, expected) in [
            (json!({"response_format": {"type": "text"}}), None),
            (json!({"response_format": null}), None),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}}}),
                of_schema(SCHEMA),
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": schema}}),
                of_schema("response_format.schema"),
            ),
            (json!({"structured_outputs": {"json": schema}}), of_schema("structured_outputs.json")),
            (
                json!({"structured_outputs": {"json": schema.to_string()}}),
                of_schema("structured_outputs.json"),
            ),
            (
                json!({"structured_outputs": {"choice": ["a", "b"]}}),
                Some((Grammar::Choices(vec!["a".into(), "b".into()]).into(), "structured_outputs.choice")),
            ),
        ] {
            assert_eq!(constraint(&request), Ok(expected), "{request}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (request, field) in [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {}}), "response_format.type"),
            (json!({"response_format": {"type": "xml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_schema"}}), SCHEMA),
            (json!({"response_format": {"type": "json_object", "strict": true}}), "response_format.strict"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "shema": {}}}}),
                "response_format.json_schema.shema",
            ),
            (json!({"structured_outputs": {}}), "structured_outputs"),
            (json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}), "structured_outputs"),
            (json!({"structured_outputs": {"json": "{"}}), "structured_outputs.json"),
            (
                json!({"structured_outputs": {"whitespace_pattern": " "}}),
                "structured_outputs.whitespace_pattern",
            ),
            (
                json!({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}),
                "structured_outputs",
            ),
        ] {
            assert_eq!(constraint(&request).expect_err("wrong").param(), Some(field), "{request}");
        }
    }
}
