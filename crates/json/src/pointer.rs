//! References into the same JSON document: `#` and a JSON pointer, which may be percent-encoded.

use std::borrow::Cow;

use serde_json::Value;

/// Returns the pointer of a reference, if `root` has a value there. References with an unescaped `%` are resolved
/// too.
pub fn target<'a>(reference: &'a str, root: &Value) -> Option<Cow<'a, str>> {
    let written = reference.strip_prefix('#')?;
    [decoded(written), Cow::Borrowed(written)].into_iter().find(|pointer| root.pointer(pointer).is_some())
}

/// Escapes a name for use in a pointer.
pub fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Returns the unescaped names in a pointer.
pub fn names(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|segment| segment.replace("~1", "/").replace("~0", "~"))
}

/// Decodes percent-encoded bytes. Returns the text unchanged if the result is not UTF-8.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.get(..2).filter(|digits| first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(text), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pointers_are_decoded_and_names_with_signs_are_found() {
        let root =
            json!({"a/b": 1, "a~b": 2, "Record<string>": 3, "50%": 4, "%41": 5, "ä": 6, "a": {"b": 7}});
        for (reference, pointer) in [
            ("#", Some("")),
            ("#/a~1b", Some("/a~1b")),
            ("#/a~0b", Some("/a~0b")),
            ("#/Record%3Cstring%3E", Some("/Record<string>")),
            ("#/Record<string>", Some("/Record<string>")),
            ("#/50%", Some("/50%")),
            ("#/50%25", Some("/50%")),
            ("#/%41", Some("/%41")),
            ("#/%C3%A4", Some("/ä")),
            ("#/a%2Fb", Some("/a/b")),
            ("#/c", None),
            ("other#/a", None),
        ] {
            assert_eq!(target(reference, &root).as_deref(), pointer, "{reference}");
        }
        assert_eq!(names("/a~1b/~01").collect::<Vec<_>>(), ["a/b", "~1"]);
        assert_eq!(escaped("a/~1"), "a~1~01");
    }
}
