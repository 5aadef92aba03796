//! A Jinja environment like the one that transformers sets up for chat templates.

use std::borrow::Cow;
use std::fmt;

use jiff::civil::DateTime;
use minijinja::value::{Kwargs, ObjectRepr, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Template, Value};
use serde_json::Map;

use super::{budget, clock, filters, methods, python};

/// The instructions that a rendering may execute, which ends an endless loop within a second or two. Real templates
/// execute a few hundred per message.
const FUEL: u64 = 10_000_000;

/// An environment without templates.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    // The delimiters are Jinja's own, so the syntax cannot conflict.
    let syntax = environment.syntax().to_builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_fuel(Some(FUEL));
    // Without this, errors name the variable in debug builds only.
    environment.set_debug(true);
    environment.set_formatter(|output, state, value| {
        let printed: Cow<str> = value.as_str().map_or_else(|| python::str(value).into(), Cow::from);
        budget::spend(state, printed.len())?;
        Ok(output.write_str(&printed)?)
    });
    environment.set_unknown_method_callback(methods::call);
    filters::add(&mut environment);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    environment.add_test("callable", is_callable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("dict", dict);
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment
}

/// Renders `template` with `variables`; `strftime_now` uses `now` or the clock.
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

/// Converts an error: the bare message of a template's `raise_exception`, any other error with its line.
pub(super) fn explain(error: &Error) -> crate::error::Error {
    let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |cause| cause.source());
    let raised = causes.find_map(|cause| cause.downcast_ref::<Raised>());
    crate::error::Error::Template(match (raised, error.name().zip(error.line())) {
        (Some(raised), _) => raised.0.clone(),
        (None, None) => error.to_string(),
        (None, Some((name, line))) => {
            let message = error.to_string();
            let message = message.strip_suffix(&format!(" (in {name}:{line})")).unwrap_or(&message);
            format!("line {line}: {message}")
        }
    })
}

/// Converts JSON to a template value.
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
        Json::Object(entries) => {
            Value::from_pairs(entries.iter().map(|(key, value)| (key.as_str(), convert(value))))
        }
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

/// `dict(mapping or pairs, **entries)`
fn dict(arguments: python::Arguments) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    let (start, entries): (Option<Value>, Kwargs) = from_args(&arguments)?;
    let mut pairs = Vec::new();
    if let Some(start) = start {
        for item in start.try_iter()?.checked() {
            let item = item?;
            pairs.push(match start.kind() {
                ValueKind::Map => (item.clone(), start.get_item(&item)?),
                _ => (item.get_item_by_index(0)?, item.get_item_by_index(1)?),
            });
        }
    }
    for name in entries.args() {
        pairs.push((Value::from(name), entries.get(name)?));
    }
    Ok(Value::from_pairs(pairs))
}

/// Whether a value can be called: functions and macros. A method that is not called is no value here.
fn is_callable(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.repr() == ObjectRepr::Plain)
}
