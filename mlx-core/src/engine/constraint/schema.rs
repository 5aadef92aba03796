//! JSON schemas: checks which features can be enforced, and rewrites a schema for the grammar compiler. A schema is refused if it can be
//! enforced only in part. A bound that cannot be represented exactly becomes narrower.

use std::collections::HashSet;

use mlx_json::pointer;
use serde_json::{Map, Number, Value, json};

use super::formats::{pattern_of, with_agreed_space};
use super::references::References;

/// The maximum size of a schema in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The maximum nesting depth of a schema.
const MAX_DEPTH: usize = 64;

/// The white space between two JSON tokens. A broader rule would let a model that repeats itself write white space forever.
const WHITE_SPACE: &str = r"[\x20\x0A]";

/// The key of the compiler's options in a schema. Users may not set it.
const OPTIONS: &str = "x-guidance";

/// Constraining keywords that no grammar enforces.
const REFUSED: [&str; 19] = [
    OPTIONS,
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
];

/// Numbers below this are exact in the compiler.
const EXACT: f64 = (1_u64 << 53) as f64;

/// Bounds beyond this are outside the compiler's range.
const MAX_INTEGER: f64 = (i64::MAX - 1023) as f64;

/// Returns the schema in the form to compile. An error names the feature that cannot be enforced, as the end of a sentence about the
/// schema.
pub(super) fn enforceable(schema: &Value) -> Result<Value, String> {
    let root = schema;
    let mut schema = if *schema == json!(true) { json!({}) } else { schema.clone() };
    let mut walk = Walk::of(root);
    walk.schema(&mut schema, "#", 0)?;
    walk.references.finish(&mut schema, MAX_BYTES)?;
    if schema.to_string().len() > MAX_BYTES {
        return Err(format!("has more than {MAX_BYTES} bytes"));
    }
    let Some(object) = schema.as_object_mut() else { return Err("is false, which no text satisfies".into()) };
    object.insert(OPTIONS.into(), json!({ "whitespace_pattern": WHITE_SPACE }));
    Ok(schema)
}

/// A walk over all subschemas of a schema.
struct Walk<'a> {
    /// True if a list of `items` is a tuple, as before version 2020-12.
    is_old: bool,
    references: References<'a>,
}

impl<'a> Walk<'a> {
    fn of(schema: &'a Value) -> Self {
        let draft = schema.get("$schema").and_then(Value::as_str);
        let is_old = draft.is_some_and(|draft| !draft.contains("2020-12"));
        Self { is_old, references: References::of(schema) }
    }

    fn schema(&mut self, schema: &mut Value, place: &str, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("is nested more than {MAX_DEPTH} levels deep"));
        }
        self.references.add_schema(place);
        match schema {
            Value::Bool(_) => Ok(()),
            Value::Object(object) => {
                refuse(object, place)?;
                self.check_form(object, place)?;
                narrow(object).map_err(|why| format!("{why} at {place}"))?;
                self.children(object, place, depth)
            }
            _ => Err(format!("is neither an object nor a boolean at {place}")),
        }
    }

    /// Checks keywords with a meaning that depends on their position or on the version of the specification.
    fn check_form(&mut self, object: &mut Map<String, Value>, place: &str) -> Result<(), String> {
        let refused = |what: &str| Err(format!("uses {what} at {place}, which cannot be enforced"));
        if let Some(Value::String(reference)) = object.get_mut("$ref") {
            self.references.rewrite(reference, place);
        }
        if place != "#" && (object.contains_key("$id") || object.contains_key("$schema")) {
            return refused("a schema with its own $id or $schema");
        }
        if object.contains_key("prefixItems") && self.is_old {
            return refused("prefixItems, which this $schema version does not have,");
        }
        if object.get("items").is_some_and(Value::is_array) && !self.is_old {
            return refused("a list of items, replaced by prefixItems in 2020-12,");
        }
        // A grammar cannot count distinct keys.
        let required: HashSet<&str> = object
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let least = object.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
        let is_closed = object.get("additionalProperties") == Some(&json!(false))
            && !object.contains_key("patternProperties");
        if least > required.len() as u64 && !is_closed {
            return refused("minProperties greater than the number of required properties");
        }
        Ok(())
    }

    fn children(&mut self, object: &mut Map<String, Value>, place: &str, depth: usize) -> Result<(), String> {
        for (keyword, value) in object.iter_mut() {
            let place = format!("{place}/{keyword}");
            match (keyword.as_str(), value) {
                ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(named)) => {
                    for (name, schema) in named {
                        self.schema(schema, &format!("{place}/{}", pointer::escaped(name)), depth + 1)?;
                    }
                }
                ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(list)) => {
                    for (index, schema) in list.iter_mut().enumerate() {
                        self.schema(schema, &format!("{place}/{index}"), depth + 1)?;
                    }
                }
                ("items" | "additionalItems" | "additionalProperties", schema) => {
                    self.schema(schema, &place, depth + 1)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn refuse(object: &mut Map<String, Value>, place: &str) -> Result<(), String> {
    if object.get("uniqueItems") == Some(&json!(false)) {
        object.shift_remove("uniqueItems");
    }
    match REFUSED.iter().find(|keyword| object.contains_key(**keyword)) {
        None => Ok(()),
        Some(keyword) => Err(format!("uses {keyword} at {place}, which cannot be enforced")),
    }
}

/// Replaces keywords that the compiler would interpret too broadly.
fn narrow(object: &mut Map<String, Value>) -> Result<(), String> {
    for (keyword, is_lower) in
        [("minimum", true), ("exclusiveMinimum", true), ("maximum", false), ("exclusiveMaximum", false)]
    {
        if let Some(Value::Number(bound)) = object.get_mut(keyword) {
            *bound = narrowed(bound, is_lower).ok_or_else(|| format!("has a {keyword} out of range"))?;
        }
    }
    let values = object
        .get("const")
        .into_iter()
        .chain(object.get("enum").and_then(Value::as_array).into_iter().flatten());
    if !values.clone().all(is_exact) {
        return Err("contains a number with more than 15 digits".into());
    }
    if let Some(Value::String(pattern)) = object.get_mut("pattern") {
        *pattern = with_agreed_space(pattern);
    }
    let Some(format) = object.get("format").and_then(Value::as_str) else { return Ok(()) };
    if let Some(pattern) = pattern_of(format) {
        object.shift_remove("format");
        if object.contains_key("pattern") {
            let others = object.entry("allOf").or_insert_with(|| json!([]));
            others
                .as_array_mut()
                .ok_or("has an allOf that is not a list")?
                .push(json!({ "pattern": pattern }));
        } else {
            object.insert("pattern".into(), pattern.into());
        }
    }
    Ok(())
}

/// Returns the nearest bound within the given one that the compiler can represent.
fn narrowed(bound: &Number, is_lower: bool) -> Option<Number> {
    let float = bound.as_f64()?;
    if float.abs() >= MAX_INTEGER {
        // No written integer reaches this bound.
        let is_open = is_lower == (float < 0.0);
        return is_open.then(|| Number::from_f64(MAX_INTEGER.copysign(float))).flatten();
    }
    let whole = bound.as_i64().filter(|whole| float as i64 != *whole);
    match whole {
        None => Some(bound.clone()),
        Some(whole) if is_lower && float as i64 <= whole => Number::from_f64(float.next_up()),
        Some(whole) if !is_lower && float as i64 >= whole => Number::from_f64(float.next_down()),
        Some(_) => Number::from_f64(float),
    }
}

/// Returns true if every number in a value is written with at most as many digits as a float holds.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            number.as_f64().is_some_and(|float| float.abs() < EXACT && float.to_string().len() <= 17)
        }
        Value::Array(list) => list.iter().all(is_exact),
        Value::Object(object) => object.values().all(is_exact),
        _ => true,
    }
}
