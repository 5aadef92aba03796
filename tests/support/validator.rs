//! A validator of JSON schemas for the keywords that [`crate::schemas`] uses. It checks values, while a grammar generates text.

use regex::Regex;
use serde_json::{Map, Value};

/// Checks a value against a schema; the error describes the first mismatch.
pub fn check(schema: &Value, value: &Value) -> Result<(), String> {
    in_root(schema, schema, value)
}

fn in_root(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let Value::Object(keywords) = schema else {
        return if *schema == Value::Bool(true) { Ok(()) } else { Err(format!("{value} is forbidden")) };
    };
    for (keyword, rule) in keywords {
        if !holds(root, keywords, (keyword, rule), value) {
            return Err(format!("{value} breaks {keyword}: {rule}"));
        }
    }
    Ok(())
}

fn holds(root: &Value, all: &Map<String, Value>, (keyword, rule): (&str, &Value), value: &Value) -> bool {
    let fits = |schema: &Value, value: &Value| in_root(root, schema, value).is_ok();
    let count = || rule.as_u64().expect("a count") as usize;
    let list = || rule.as_array().expect("a list").iter();
    match keyword {
        "type" => match rule {
            Value::Array(types) => types.iter().any(|it| has_type(it, value)),
            one => has_type(one, value),
        },
        "enum" => list().any(|it| equal(it, value)),
        "const" => equal(rule, value),
        "anyOf" => list().any(|it| fits(it, value)),
        "allOf" => list().all(|it| fits(it, value)),
        "oneOf" => list().filter(|it| fits(it, value)).count() == 1,
        "$ref" => {
            let pointer = rule.as_str().and_then(|it| it.strip_prefix('#')).expect("a local reference");
            fits(root.pointer(pointer).expect("it exists"), value)
        }
        "$defs" => true,
        _ => match value {
            Value::Object(object) => holds_of_object(all, (keyword, rule), object, &fits),
            Value::Array(items) => match keyword {
                "items" => {
                    let before = all.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                    items.iter().skip(before).all(|item| fits(rule, item))
                }
                "prefixItems" => list().zip(items).all(|(schema, item)| fits(schema, item)),
                "minItems" => items.len() >= count(),
                "maxItems" => items.len() <= count(),
                _ => true,
            },
            Value::String(text) => match keyword {
                "minLength" => text.chars().count() >= count(),
                "maxLength" => text.chars().count() <= count(),
                "pattern" => pattern(rule).is_match(text),
                "format" => has_format(rule.as_str().expect("a name"), text),
                _ => true,
            },
            Value::Number(number) => {
                let (number, bound) = (number.as_f64().expect("finite"), rule.as_f64());
                match (keyword, bound) {
                    ("minimum", Some(bound)) => number >= bound,
                    ("maximum", Some(bound)) => number <= bound,
                    ("exclusiveMinimum", Some(bound)) => number > bound,
                    ("exclusiveMaximum", Some(bound)) => number < bound,
                    ("multipleOf", Some(bound)) => (number / bound).fract() == 0.0,
                    _ => true,
                }
            }
            Value::Null | Value::Bool(_) => true,
        },
    }
}

fn holds_of_object(
    all: &Map<String, Value>,
    (keyword, rule): (&str, &Value),
    object: &Map<String, Value>,
    fits: &dyn Fn(&Value, &Value) -> bool,
) -> bool {
    let named = |keyword: &str| all.get(keyword).and_then(Value::as_object);
    match keyword {
        "properties" => {
            let schemas = rule.as_object().expect("an object");
            object.iter().all(|(name, value)| schemas.get(name).is_none_or(|schema| fits(schema, value)))
        }
        "additionalProperties" => object.iter().all(|(name, value)| {
            let is_named = named("properties").is_some_and(|it| it.contains_key(name));
            is_named || fits(rule, value)
        }),
        "required" => rule
            .as_array()
            .expect("a list")
            .iter()
            .all(|name| object.contains_key(name.as_str().expect("a name"))),
        "minProperties" => object.len() as u64 >= rule.as_u64().expect("a count"),
        "maxProperties" => object.len() as u64 <= rule.as_u64().expect("a count"),
        _ => true,
    }
}

fn has_type(name: &Value, value: &Value) -> bool {
    match name.as_str().expect("a name") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        _ => value.is_object(),
    }
}

/// Compares values; numbers are equal by value.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let same = |(name, value): (&String, &Value)| other.get(name).is_some_and(|it| equal(value, it));
            one.len() == other.len() && one.iter().all(same)
        }
        _ => one == other,
    }
}

/// Compiles a pattern in which `\d` and `\w` match only ASCII, as in JavaScript.
fn pattern(pattern: &Value) -> Regex {
    let pattern = pattern.as_str().expect("a text").replace("\\d", "[0-9]").replace("\\w", "[0-9A-Za-z_]");
    Regex::new(&pattern).expect("a pattern")
}

fn has_format(format: &str, text: &str) -> bool {
    match format {
        "date" => is_date(text),
        "time" => is_time(text),
        "date-time" => text.split_once('T').is_some_and(|(date, time)| is_date(date) && is_time(time)),
        "uuid" => {
            let parts: Vec<&str> = text.split('-').collect();
            let is_hex = parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()));
            is_hex && parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        }
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "hostname" => is_host(text),
        "email" => text.split_once('@').is_some_and(|(name, host)| {
            !name.is_empty()
                && name.len() <= 64
                && !name.starts_with('.')
                && !name.contains("..")
                && is_host(host)
        }),
        "duration" => {
            text.starts_with('P')
                && text.ends_with(|it: char| it.is_ascii_uppercase())
                && !text.ends_with('T')
                && text.len() > 2
        }
        other => panic!("{other} is no format of these schemas"),
    }
}

fn number(text: &str, digits: usize) -> Option<u32> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().expect("digits"))
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else { return false };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2)) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    year >= 1 && (1..=last).contains(&day)
}

fn is_time(text: &str) -> bool {
    let (clock, zone) = match text.find(['Z', '+', '-']) {
        Some(at) => text.split_at(at),
        None => return false,
    };
    let clock = clock.split_once('.').map_or(clock, |(clock, _)| clock);
    let within = |parts: &str, limits: &[u32]| {
        let parts: Vec<&str> = parts.split(':').collect();
        parts.len() == limits.len()
            && parts.iter().zip(limits).all(|(part, limit)| number(part, 2).is_some_and(|it| it < *limit))
    };
    within(clock, &[24, 60, 60]) && (zone == "Z" || within(&zone[1..], &[24, 60]))
}

fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        let is_written = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_written && (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}
