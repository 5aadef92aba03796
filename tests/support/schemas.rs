//! Random JSON schemas of everyday shapes, limited to supported keywords.

use serde_json::{Map, Value, json};

use crate::Dice;

const KEYS: [&str; 8] = ["id", "name", "a b", "größe", "x", "\"quoted\"", "list", "$ref"];
const PATTERNS: [&str; 6] = [r"^[a-z]{2,5}$", r"\d{3}", r"^\w+@\w+$", "a|b", r"^(yes|no)\s?$", "[^0-9]"];
const FORMATS: [&str; 9] =
    ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "duration"];

/// Returns a schema with at most `depth` levels of nesting.
pub fn schema(dice: &mut Dice, depth: usize) -> Value {
    let mut schema = any(dice, depth);
    if let Some(object) = schema.as_object_mut()
        && dice.below(4) == 0
    {
        object.insert("$defs".into(), json!({ "other": leaf(dice) }));
        if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
            properties.insert("other".into(), json!({ "$ref": "#/$defs/other" }));
        }
    }
    schema
}

fn any(dice: &mut Dice, depth: usize) -> Value {
    if depth == 0 {
        return leaf(dice);
    }
    match dice.below(8) {
        0..3 => object(dice, depth),
        3..5 => array(dice, depth),
        5 => json!({ "anyOf": [any(dice, depth - 1), any(dice, depth - 1)] }),
        6 => json!({ "allOf": [object(dice, depth - 1), { "type": "object", "required": ["id"] }] }),
        _ => leaf(dice),
    }
}

fn object(dice: &mut Dice, depth: usize) -> Value {
    let names: Vec<&str> = KEYS.into_iter().filter(|_| dice.below(3) == 0).collect();
    let mut properties = Map::new();
    for name in &names {
        properties.insert((*name).to_owned(), any(dice, depth.saturating_sub(1)));
    }
    let required: Vec<&str> = names.into_iter().filter(|_| dice.below(2) == 0).collect();
    let mut schema = json!({ "type": "object", "properties": properties, "required": required });
    match dice.below(4) {
        0 => {}
        1 => schema["additionalProperties"] = any(dice, depth.saturating_sub(1)),
        _ => schema["additionalProperties"] = json!(false),
    }
    if dice.below(8) == 0 {
        schema["maxProperties"] = json!(schema["required"].as_array().map_or(0, Vec::len) + 1);
    }
    schema
}

fn array(dice: &mut Dice, depth: usize) -> Value {
    let mut schema = json!({ "type": "array", "items": any(dice, depth - 1) });
    let least = dice.below(3);
    if dice.below(2) == 0 {
        schema["minItems"] = json!(least);
    }
    if dice.below(2) == 0 {
        schema["maxItems"] = json!(least + dice.below(3));
    }
    if dice.below(4) == 0 {
        schema["prefixItems"] = json!([leaf(dice), leaf(dice)]);
    }
    schema
}

fn leaf(dice: &mut Dice) -> Value {
    match dice.below(10) {
        0 => json!({ "type": "boolean" }),
        1 => json!({ "type": ["null", "integer"] }),
        2 => json!({ "enum": ["red", "green", 5, 1.5, null, true, {"a": [1]}] }),
        3 => json!({ "const": "fixed \"text\"\n" }),
        4 => number(dice, "integer"),
        5 => number(dice, "number"),
        6 => json!({ "type": "string", "pattern": dice.pick(&PATTERNS) }),
        7 => json!({ "type": "string", "format": dice.pick(&FORMATS) }),
        8 => {
            let least = dice.below(4);
            json!({ "type": "string", "minLength": least, "maxLength": least + dice.below(6) })
        }
        _ => json!({ "type": "string" }),
    }
}

fn number(dice: &mut Dice, kind: &str) -> Value {
    let mut schema = json!({ "type": kind });
    let least = dice.below(2000) as f64 / 4.0 - 250.0;
    if dice.below(2) == 0 {
        schema[dice.pick(&["minimum", "exclusiveMinimum"])] = json!(least);
    }
    if dice.below(2) == 0 {
        schema[dice.pick(&["maximum", "exclusiveMaximum"])] = json!(least + 1.0 + dice.below(4000) as f64);
    }
    if dice.below(4) == 0 {
        schema["multipleOf"] = json!(dice.pick(&[1.0, 3.0, 0.5]));
    }
    schema
}
