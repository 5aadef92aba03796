//! The method names of each type.

use super::value::{ListKind, Value};

/// The methods of texts.
const OF_TEXT: [&str; 44] = [
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "splitlines",
    "partition",
    "rpartition",
    "find",
    "rfind",
    "index",
    "rindex",
    "count",
    "join",
    "replace",
    "removeprefix",
    "removesuffix",
    "title",
    "casefold",
    "zfill",
    "ljust",
    "rjust",
    "center",
    "upper",
    "lower",
    "capitalize",
    "swapcase",
    "startswith",
    "endswith",
    "format",
    "isdigit",
    "isalpha",
    "isalnum",
    "isspace",
    "isupper",
    "islower",
    "isnumeric",
    "isdecimal",
    "isascii",
    "isidentifier",
    "istitle",
    "isprintable",
    "expandtabs",
    "format_map",
];

/// Methods that change a value. They fail in Jinja's immutable sandbox, which transformers uses, and here
/// too.
pub(super) const MUTATING: [&str; 13] = [
    "append",
    "extend",
    "insert",
    "remove",
    "clear",
    "reverse",
    "sort",
    "pop",
    "popitem",
    "update",
    "setdefault",
    "add",
    "discard",
];

/// Returns true if the type of a value has this method.
pub(super) fn has_method(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) => OF_TEXT.contains(&name),
        Value::Map(_) => {
            matches!(
                name,
                "get"
                    | "items"
                    | "keys"
                    | "values"
                    | "copy"
                    | "pop"
                    | "popitem"
                    | "update"
                    | "setdefault"
                    | "clear"
            )
        }
        Value::List(list) if list.is_sequence() => {
            matches!(name, "index" | "count")
                || list.kind == ListKind::List && (name == "copy" || MUTATING[..8].contains(&name))
        }
        _ => false,
    }
}
