//! The Jinja environment that transformers sets up for chat templates.

use std::fmt;

use jiff::civil::DateTime;
use minijinja::value::{Kwargs, Value, from_args};
use minijinja::{Environment, Error, ErrorKind, Template};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Map;

use super::{clock, json};

/// How many instructions a rendering may take: a template that loops for ever ends within seconds. Real templates take
/// a few hundred per message.
const FUEL: u64 = 50_000_000;

/// An environment without templates.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    // The delimiters are Jinja's own, so the syntax cannot conflict.
    let syntax = environment.syntax().to_builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment
}

/// Renders `template` from `variables`, and `strftime_now` from `now` or the clock.
pub(super) fn render(
    template: &Template<'_, '_>,
    variables: &Map<String, serde_json::Value>,
    now: Option<DateTime>,
) -> Result<String, Error> {
    let strftime_now = Value::from_function(move |format: &str| {
        clock::format(now.unwrap_or_else(|| jiff::Zoned::now().datetime()), format)
    });
    let variables = variables.iter().map(|(name, value)| (name.as_str(), convert(value)));
    template.render(Value::from_pairs([("strftime_now", strftime_now)].into_iter().chain(variables)))
}

/// What went wrong, for the user: a template's own message alone, anything else with its line.
pub(super) fn explain(error: &Error) -> crate::error::Error {
    let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |cause| cause.source());
    let raised = causes.find_map(|cause| cause.downcast_ref::<Raised>());
    crate::error::Error::Template(raised.map_or_else(|| error.to_string(), |raised| raised.0.clone()))
}

/// JSON data as a template sees it.
fn convert(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(convert).collect::<Vec<_>>()),
        Json::Object(entries) => Value::from_pairs(entries.iter().map(|(key, value)| (key.as_str(), convert(value)))),
    }
}

/// The message of a template's `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = Raised(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "the template raised an exception").with_source(raised))
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, as transformers defines it.
fn to_json(value: &Value, arguments: minijinja::value::Rest<Value>) -> Result<String, Error> {
    type Positional = (Option<Value>, Option<Value>, Option<Value>, Option<Value>, Kwargs);
    let (ascii, indent, separators, sort_keys, named): Positional = from_args(&arguments)?;
    let option = |given: Option<Value>, name: &str| -> Result<Option<Value>, Error> {
        let value = if named.has(name) { Some(named.get::<Value>(name)?) } else { given };
        Ok(value.filter(|value| !value.is_none()))
    };
    let ascii = option(ascii, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = option(indent, "indent")?.map(|value| match value.as_str() {
        Some(text) => Ok(text.to_string()),
        None => i64::try_from(value).map(|count| " ".repeat(count.clamp(0, 80) as usize)),
    });
    let indent = indent.transpose()?;
    let item_separator = if indent.is_some() { "," } else { ", " }.to_string();
    let mut style = json::Style { ascii, indent, item_separator, key_separator: ": ".to_string(), sort_keys: false };
    if let Some(separators) = option(separators, "separators")? {
        style.item_separator = separators.get_item_by_index(0)?.to_string();
        style.key_separator = separators.get_item_by_index(1)?.to_string();
    }
    style.sort_keys = option(sort_keys, "sort_keys")?.is_some_and(|value| value.is_true());
    named.assert_all_used()?;
    json::dump(value, &style)
}
