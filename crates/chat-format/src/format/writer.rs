//! Writes calls like a family's model: for prompts if the template does not write calls, and for comparisons with
//! templates that do.

use mlx_json::{Map, Value};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

use super::calls::CallFormat;
use super::family::{Args, Envelope, KindOfValue, Part, Tagged};

/// A call to write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WrittenCall<'a> {
    pub(crate) id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) arguments: &'a Map,
}

impl CallFormat {
    /// Returns the text of these calls in one answer.
    pub(crate) fn write(&self, calls: &[WrittenCall]) -> String {
        let family = self.syntax().family;
        let written: Vec<String> = calls.iter().map(|call| write_call(family.call, call)).collect();
        match family.section {
            None => written.join(family.between),
            Some(section) if section.is_shared => {
                [section.open, &written.join(family.between), section.close].concat()
            }
            Some(section) => {
                // Llama's section marker precedes only calls of its built-in tools.
                let open = if family.only_first { "" } else { section.open };
                let each = written.iter().map(|call| [open, call, section.close].concat());
                each.collect::<Vec<_>>().join(family.between)
            }
        }
    }
}

fn write_call(parts: &[Part], call: &WrittenCall) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => (*text).to_owned(),
        Part::Name => call.name.to_owned(),
        Part::Id | Part::NameInId => call.id.to_owned(),
        Part::Args(args) => write_args(args, call.arguments),
        Part::Envelope(envelope) => write_envelope(envelope, call),
    };
    parts.iter().map(part).collect()
}

fn write_envelope(envelope: &Envelope, call: &WrittenCall) -> String {
    let arguments = Value::Object(call.arguments.clone());
    let mut object = Map::new();
    if envelope.name.is_empty() {
        object.insert(call.name.into(), arguments);
        return spaced_json(&Value::Object(object));
    }
    let id = |is_first: bool| envelope.id.filter(|(_, first)| *first == is_first);
    object.extend(id(true).map(|(key, _)| (key.to_owned(), call.id.into())));
    object.insert(envelope.name.into(), call.name.into());
    object.insert(envelope.args.into(), arguments);
    object.extend(id(false).map(|(key, _)| (key.to_owned(), call.id.into())));
    spaced_json(&Value::Object(object))
}

fn write_args(args: &Args, arguments: &Map) -> String {
    match args {
        Args::Json => spaced_json(&Value::Object(arguments.clone())),
        Args::Python => {
            let each = arguments.iter().map(|(key, value)| format!("{key}={}", spaced_json(value)));
            each.collect::<Vec<_>>().join(", ") + ")"
        }
        Args::Bare { quote } => bare_map(arguments, quote),
        Args::Tagged(tagged) => arguments.iter().map(|(key, value)| write_tag(tagged, key, value)).collect(),
        Args::Nested { prefix } => nested_map(arguments, prefix),
    }
}

fn bare(value: &Value, quote: &str) -> String {
    match value {
        Value::String(text) => [quote, text, quote].concat(),
        Value::Object(map) => bare_map(map, quote),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| bare(item, quote)).collect();
            format!("[{}]", items.join(","))
        }
        other => other.to_string(),
    }
}

fn bare_map(map: &Map, quote: &str) -> String {
    let each = map.iter().map(|(key, value)| format!("{key}:{}", bare(value, quote)));
    format!("{{{}}}", each.collect::<Vec<_>>().join(","))
}

fn write_tag(tagged: &Tagged, key: &str, value: &Value) -> String {
    let kind = tagged.kind.map(|(kind, after)| [value_kind(kind, value), after].concat());
    let written = match value {
        Value::String(text) => text.clone(),
        other => spaced_json(other),
    };
    let kind = kind.unwrap_or_default();
    [tagged.key.0, key, tagged.key.1, &kind, tagged.value.0, &written, tagged.value.1].concat()
}

fn value_kind(kind: KindOfValue, value: &Value) -> &'static str {
    match (kind, value) {
        (KindOfValue::IsText, Value::String(_)) => "true",
        (KindOfValue::IsText, _) => "false",
        (KindOfValue::TypeName, Value::String(_)) => "string",
        (KindOfValue::TypeName, Value::Number(_)) => "number",
        (KindOfValue::TypeName, Value::Bool(_)) => "boolean",
        (KindOfValue::TypeName, Value::Null) => "null",
        (KindOfValue::TypeName, Value::Array(_)) => "array",
        (KindOfValue::TypeName, Value::Object(_)) => "object",
    }
}

fn nested_map(map: &Map, prefix: &str) -> String {
    map.iter().map(|(key, value)| element(key, value, prefix)).collect()
}

fn element(key: &str, value: &Value, prefix: &str) -> String {
    let inner = match value {
        Value::String(text) => text.clone(),
        Value::Object(map) => nested_map(map, prefix),
        Value::Array(items) => items.iter().map(|item| element("item", item, prefix)).collect(),
        other => other.to_string(),
    };
    format!("{prefix}<{key}>{inner}{prefix}</{key}>")
}

/// Writes JSON with a space after commas and colons, like templates do.
pub(crate) fn spaced_json(value: &Value) -> String {
    let mut out = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut out, Spaced));
    written.expect("a value has a text, and memory does not fail");
    String::from_utf8(out).expect("JSON is UTF-8")
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}
