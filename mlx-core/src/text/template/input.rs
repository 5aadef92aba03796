//! What a rendering starts from: variables, as JSON and as values.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value as Plain;

use super::TemplateInput;
use super::fault::Outcome;
use super::messages::MessageForm;
use super::meter::Meter;
use super::value::{Entries, Key, Value};
use crate::json::{Map, Number, Value as Json};

/// The variables of a chat, with its messages in this form.
pub(super) fn variables(
    special_tokens: &serde_json::Map<String, Plain>,
    input: &TemplateInput,
    form: MessageForm,
) -> Map {
    let list = |values: &Option<Vec<Json>>| values.clone().map_or(Json::Null, Json::Array);
    let mut variables: Map =
        special_tokens.iter().map(|(name, it)| (name.clone(), it.clone().into())).collect();
    variables.extend(input.extra.clone());
    variables.insert("messages".into(), input.messages.iter().map(|message| form.write(message)).collect());
    variables.insert("tools".into(), list(&input.tools));
    variables.insert("documents".into(), list(&input.documents));
    variables.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
    variables
}

/// The values of variables.
pub(super) fn values(variables: &Map, meter: &Meter) -> Outcome<Vec<(Arc<str>, Value)>> {
    let mut keys = HashMap::new();
    variables
        .iter()
        .map(|(name, value)| Ok((name.as_str().into(), convert(value, &mut keys, meter)?)))
        .collect()
}

/// Converts JSON; equal keys share their text.
fn convert<'a>(value: &'a Json, keys: &mut HashMap<&'a str, Key>, meter: &Meter) -> Outcome<Value> {
    Ok(match value {
        Json::Null => Value::None,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => of_number(number, meter)?,
        Json::String(text) => Value::text(meter, text.as_str())?,
        Json::Array(items) => {
            let items = items.iter().map(|item| convert(item, keys, meter)).collect::<Outcome<_>>()?;
            Value::list(meter, items)?
        }
        Json::Object(object) => {
            let mut entries = Entries::with_capacity(object.len());
            for (name, value) in object {
                let key = match keys.get(name.as_str()) {
                    Some(key) => key.clone(),
                    None => Key::new(&Value::text(meter, name.as_str())?)?,
                };
                keys.entry(name).or_insert_with(|| key.clone());
                entries.insert(key, convert(value, keys, meter)?);
            }
            Value::map(meter, entries)?
        }
    })
}

/// A number as Python's `json.loads` reads it.
fn of_number(number: &Number, meter: &Meter) -> Outcome<Value> {
    match number.as_i128() {
        Some(integer) => Ok(Value::Int(integer)),
        None if number.is_integer() => Value::long(meter, number.to_string()),
        None => Ok(Value::Float(number.as_f64().unwrap_or(f64::NAN))),
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Result;
    use crate::json;
    use crate::text::{ChatTemplate, TemplateInput};

    fn render(source: &str, variables: &str) -> Result<String> {
        let template = ChatTemplate::from_source(source, serde_json::Map::new())?;
        let variables = json::parse(variables.as_bytes()).expect("JSON");
        let extra = variables.as_object().cloned().expect("an object");
        template.render(&TemplateInput { extra, ..TemplateInput::default() })
    }

    /// The expected texts are those that Python writes after `json.loads`.
    #[test]
    fn numbers_are_those_of_python() {
        for (number, expected) in [
            ("0.9452706955539223", "0.9452706955539223"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("-170141183460469231731687303715884105729", "-170141183460469231731687303715884105729"),
            ("18446744073709551616", "18446744073709551616"),
            ("1e5", "100000.0"),
            ("1.50", "1.5"),
            ("1E16", "1e+16"),
            ("-0.0", "-0.0"),
            ("-0", "0"),
        ] {
            let variables = format!("{{\"n\": [{number}]}}");
            let rendered = render("{{ n[0] }}|{{ n[0]|tojson }}|{{ n }}|{{ n|tojson }}", &variables);
            let text = format!("{expected}|{expected}|[{expected}]|[{expected}]");
            assert_eq!(rendered.expect(number), text);
        }
    }

    #[test]
    fn integers_beyond_128_bits_are_written_and_compared() {
        let digits = "9".repeat(42);
        let variables = format!("{{\"n\": {digits}, \"m\": -{digits}}}");
        let tests = "{{ n is integer }}{{ n is number }}{{ n is string }}{{ n == n }}{{ n == m }}{{ n > 1 }}{{ m < 1 }}";
        assert_eq!(render(tests, &variables).expect("comparisons"), "TrueTrueFalseTrueFalseTrueTrue");
        let written =
            "{{ 'a' if n else 'b' }}{{ n ~ '' }}{{ n|int }}{{ '%d' % n }}{{ '%s'|format(n) }}{{ n|string }}";
        assert_eq!(render(written, &variables).expect("texts"), format!("a{}", digits.repeat(5)));
        for source in ["{{ n + 1 }}", "{{ -n }}", "{{ n|abs }}", "{{ 1.5 * n }}"] {
            let error = render(source, &variables).expect_err(source).to_string();
            assert!(error.contains("too large"), "{error}");
        }
    }
}
