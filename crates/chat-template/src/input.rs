//! Converts the variables of a rendering.

use std::collections::HashMap;
use std::sync::Arc;

use mlx_json::{Map, Number, Value as Json};

use super::fault::Outcome;
use super::meter::Meter;
use super::value::{Entries, Key, Value};

/// Converts all variables.
pub(super) fn values(variables: &Map, meter: &Meter) -> Outcome<Vec<(Arc<str>, Value)>> {
    let mut keys = HashMap::new();
    variables
        .iter()
        .map(|(name, value)| Ok((name.as_str().into(), convert(value, &mut keys, meter)?)))
        .collect()
}

/// Converts a JSON value. Equal keys share their text.
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

/// Converts a number like Python's `json.loads`.
fn of_number(number: &Number, meter: &Meter) -> Outcome<Value> {
    match number.as_i128() {
        Some(integer) => Ok(Value::Int(integer)),
        None if number.is_integer() => Value::long(meter, number.to_string()),
        None => Ok(Value::Float(number.as_f64().unwrap_or(f64::NAN))),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Error, NO_PAUSE, RenderLimits, Template};

    fn render(source: &str, variables: &str) -> Result<String, Error> {
        let variables = mlx_json::parse(variables.as_bytes()).expect("JSON");
        let variables = variables.as_object().expect("an object");
        let template = Template::parse("", source)?;
        template.render(variables, None, &RenderLimits::default(), NO_PAUSE).expect("nothing ends it")
    }

    /// The expected texts are Python's output after `json.loads`.
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
