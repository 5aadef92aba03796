//! Parses arguments as nested elements, with a marker before each tag.

use serde_json::Value;

use super::called::Call;
use super::events::Events;
use super::input::{Flow, Input, text};
use super::tagged::json_of;
use crate::format::Pattern;
use crate::json_type::JsonTypes;
use crate::tool::Tools;

/// The maximum nesting of elements.
const DEEPEST: usize = 64;
/// The name of list elements.
const ITEM: &str = "item";

/// Arguments that are being parsed. An element's type is known only at its end, so all arguments wait for the
/// end of the call.
#[derive(Debug, Clone, Default)]
pub(super) struct NestedReader {
    held: Vec<u8>,
}

impl NestedReader {
    pub(super) fn step(
        &mut self,
        prefix: &Pattern,
        end: Option<&Pattern>,
        input: &mut Input,
        tools: &Tools,
        call: &mut Call,
        events: &mut Events,
    ) -> Flow {
        let Some(end) = end else { return Flow::Fail("unexpected text in the call") };
        let (length, hit) = input.find(&[end]);
        self.held.extend_from_slice(&input.rest()[..length]);
        input.advance(length);
        if hit.is_none() {
            return Flow::Wait;
        }
        let schema = call.name.as_deref().and_then(|name| tools.get(name)).map(|tool| &tool.parameters);
        let schema = schema.unwrap_or(&Value::Null);
        let reader = ElementReader { prefix, root: schema };
        match reader.elements(&self.held, schema, false, 0) {
            Some(json) => {
                call.args(json.as_bytes(), input, events);
                Flow::Done
            }
            None => Flow::Fail("invalid argument elements"),
        }
    }
}

struct ElementReader<'a> {
    prefix: &'a [u8],
    root: &'a Value,
}

impl ElementReader<'_> {
    /// Converts consecutive elements to an object or a list.
    fn elements(&self, bytes: &[u8], schema: &Value, is_list: bool, depth: usize) -> Option<String> {
        let (mut rest, mut parts) = (bytes.trim_ascii(), Vec::new());
        while !rest.is_empty() {
            let (key, inner, after) = self.element(rest)?;
            let of_key =
                if is_list { schema.get("items") } else { JsonTypes::schema_of(self.root, schema, &key) };
            let value = self.value(inner, of_key.unwrap_or(&Value::Null), depth + 1)?;
            parts.push(if is_list { value } else { format!("{}:{value}", Value::String(key)) });
            rest = after.trim_ascii_start();
        }
        let parts = parts.join(",");
        Some(if is_list { format!("[{parts}]") } else { format!("{{{parts}}}") })
    }

    fn value(&self, inner: &[u8], schema: &Value, depth: usize) -> Option<String> {
        let types = JsonTypes::of_schema(schema, self.root, 0);
        let is_empty_list = inner.trim_ascii().is_empty() && types == JsonTypes::ARRAY;
        if is_empty_list || inner.trim_ascii().starts_with(self.prefix) {
            let first = if is_empty_list { None } else { Some(self.element(inner.trim_ascii())?.0) };
            let is_list =
                types.has(JsonTypes::ARRAY) || types == JsonTypes::NONE && first.as_deref() == Some(ITEM);
            let schema = crate::json_type::resolved(schema, self.root);
            return if depth < DEEPEST { self.elements(inner, schema, is_list, depth) } else { None };
        }
        let written = text(inner);
        if types == JsonTypes::TEXT {
            return Some(Value::String(written).to_string());
        }
        String::from_utf8(json_of(&written, Some(types))).ok()
    }

    /// Returns the name and content of the first element, and the text after it.
    fn element<'b>(&self, bytes: &'b [u8]) -> Option<(String, &'b [u8], &'b [u8])> {
        let after = bytes.strip_prefix(self.prefix)?.strip_prefix(b"<")?;
        let end = after.iter().position(|byte| *byte == b'>')?;
        let (key, inner) = (&after[..end], &after[end + 1..]);
        let mut depth = 1;
        let mut at = 0;
        while let Some(found) = find(&inner[at..], self.prefix) {
            let tag = at + found + self.prefix.len();
            depth = if inner[tag..].starts_with(b"</") { depth - 1 } else { depth + 1 };
            if depth == 0 {
                let rest = inner[tag..].strip_prefix(b"</")?.strip_prefix(key)?.strip_prefix(b">")?;
                return Some((text(key), &inner[..at + found], rest));
            }
            at = tag;
        }
        None
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}
