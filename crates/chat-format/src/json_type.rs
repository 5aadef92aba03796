//! The types that a JSON schema allows for a value.

use mlx_json::pointer;
use serde_json::Value;

/// A set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JsonTypes(u8);

/// The maximum depth of references and alternatives.
const DEEPEST: usize = 16;

impl JsonTypes {
    pub(super) const NONE: Self = Self(0);
    pub(super) const TEXT: Self = Self(1);
    const NUMBER: Self = Self(2);
    const BOOLEAN: Self = Self(4);
    const NULL: Self = Self(8);
    pub(super) const ARRAY: Self = Self(16);
    const OBJECT: Self = Self(32);
    /// Types whose values cannot be mistaken for an unquoted word.
    pub(super) const OTHER: Self = Self(4 | 8 | 16 | 32);

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::TEXT,
            "number" | "integer" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => Self::NONE,
        }
    }

    /// Returns the type of a value.
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::TEXT,
            Value::Number(_) => Self::NUMBER,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Null => Self::NULL,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// Returns the types that a schema allows for a property; none if it does not specify them.
    pub(super) fn of_property(schema: &Value, property: &str) -> Self {
        property_of(schema, schema, property, 0).map_or(Self::NONE, |found| Self::of_schema(found, schema, 0))
    }

    /// Returns the schema of a property, for the values inside it.
    pub(super) fn schema_of<'a>(root: &'a Value, schema: &'a Value, property: &str) -> Option<&'a Value> {
        property_of(root, schema, property, 0)
    }

    /// Returns the types that a schema inside `root` allows.
    pub(super) fn of_schema(schema: &Value, root: &Value, depth: usize) -> Self {
        if depth > DEEPEST {
            return Self::NONE;
        }
        let schema = resolved(schema, root);
        let mut types = match &schema["type"] {
            Value::String(name) => Self::named(name),
            Value::Array(names) => names
                .iter()
                .filter_map(Value::as_str)
                .fold(Self::NONE, |all, name| all.and(Self::named(name))),
            _ => Self::NONE,
        };
        if types == Self::NONE {
            let values = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
            types = values.fold(types, |all, value| all.and(Self::of(value)));
        }
        let keys = ["anyOf", "oneOf", "allOf"].into_iter();
        let others = keys.filter_map(|key| schema[key].as_array()).flatten();
        others.fold(types, |all, other| all.and(Self::of_schema(other, root, depth + 1)))
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if the sets have a common type.
    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Follows the references of a schema into `root`.
pub(super) fn resolved<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..DEEPEST {
        let Some(reference) = schema["$ref"].as_str() else { break };
        let found = pointer::target(reference, root).and_then(|pointer| root.pointer(&pointer));
        let Some(found) = found else { break };
        schema = found;
    }
    schema
}

fn property_of<'a>(root: &'a Value, schema: &'a Value, property: &str, depth: usize) -> Option<&'a Value> {
    if depth > DEEPEST {
        return None;
    }
    let schema = resolved(schema, root);
    let own = schema["properties"].as_object().and_then(|properties| properties.get(property));
    let keys = ["anyOf", "oneOf", "allOf"].into_iter();
    let mut others = keys.filter_map(|key| schema[key].as_array()).flatten();
    own.or_else(|| others.find_map(|other| property_of(root, other, property, depth + 1)))
        .or_else(|| schema.get("additionalProperties").filter(|rest| rest.is_object()))
}
