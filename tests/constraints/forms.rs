//! The JSON text that a schema allows: white space between tokens, references, and causes in errors.

use chat_format::{ConstraintSpec, Grammar};
use mlx_core::sampling::TokenHistory;
use serde_json::{Value, json};

use super::{WALKER, allowed, of_schema};

/// Returns the text before the first rejected token; `None` if the whole text is allowed.
fn refused_at(spec: &ConstraintSpec, text: &str) -> Option<String> {
    let mut history = TokenHistory::new(vec![1, 9, 30]);
    let mut follower = WALKER.follower(spec, &history).expect("it can be enforced");
    let tokens = WALKER.folder.tokenizer.encode(text, false).expect("it encodes");
    for token in tokens.into_iter().chain([WALKER.folder.end_tokens[0]]) {
        if !allowed(follower.as_mut(), &history).expect("something is allowed").allows(token) {
            return Some(WALKER.folder.tokenizer.decode(history.generated(), false));
        }
        history.push(token);
    }
    None
}

/// JSON is compiled in several ways: from a schema, for any object, and from a schema inside a grammar, as for tool calls.
#[test]
fn at_most_one_space_or_line_end_stands_between_two_parts_of_json() {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "ages": {"type": "array", "items": {"type": "integer"}}},
        "required": ["name", "ages"],
        "additionalProperties": false,
    });
    let specs: [ConstraintSpec; 3] = [
        of_schema(&schema),
        of_schema(&json!({"type": "object"})),
        Grammar::Lark(format!("start: json\njson: %json {schema}")).into(),
    ];
    for spec in specs {
        for text in [
            r#"{"name":"a  b","ages":[1,2]}"#,
            r#"{"name": "a", "ages": [1, 2]}"#,
            "{\n\"name\": \"a\",\n\"ages\": [\n1,\n2\n]\n}",
            r#"{ "name" : "a" , "ages" : [ 1 , 2 ] }"#,
        ] {
            assert_eq!(refused_at(&spec, text), None, "{text}");
        }
        for (text, end) in [
            ("{\"name\":  \"a\", \"ages\": []}", ':'),
            ("{\"name\"\n\n: \"a\", \"ages\": []}", '"'),
            ("{\n  \"name\": \"a\", \"ages\": []}", '{'),
            ("{\"name\":\t\"a\", \"ages\": []}", ':'),
            ("{\"name\": \"a\", \"ages\": [1,\r\n2]}", ','),
        ] {
            let written = refused_at(&spec, text).unwrap_or_else(|| panic!("{text:?} is allowed"));
            assert!(written.trim_end().ends_with(end) && written.len() < text.len(), "{text:?}: {written:?}");
        }
    }
}

#[test]
fn references_with_the_escapes_of_pointers_and_uris_are_followed() {
    let schema = json!({
        "type": "object",
        "properties": {
            "a/b": {"const": "slash"},
            "c": {"$ref": "#/properties/a~1b"},
            "d": {"$ref": "#/definitions/Record%3Cstring%3E"},
            "e": {"$ref": "#/definitions/Record<string>"},
            "f": {"$ref": "#/$defs/p~1q"},
            "g": {"$ref": "#/$defs/50%"},
            "h": {"$ref": "#/$defs/t~0u"},
            "i": {"$ref": "#/$defs/%C3%A4"},
        },
        "required": ["a/b", "c", "d", "e", "f", "g", "h", "i"],
        "additionalProperties": false,
        "definitions": {"Record<string>": {"enum": ["record"]}},
        "$defs": {
            "copy0": {"const": "not this one"},
            "p/q": {"allOf": [{"$ref": "#/$defs/r~1s"}]},
            "r/s": {"const": "nested"},
            "50%": {"const": "half"},
            "t~u": {"const": "tilde"},
            "ä": {"const": "letter"},
        },
    });
    let expected = json!({
        "a/b": "slash", "c": "slash", "d": "record", "e": "record", "f": "nested", "g": "half", "h": "tilde", "i": "letter",
    });
    let grammar = Grammar::Lark(format!("start: json\njson: %json {schema}")).into();
    for spec in [of_schema(&schema), grammar] {
        let text = WALKER.walk(&spec, 1).expect("it can be enforced").expect("it ends");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), expected);
    }
    let list = json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/a~1b"}}]}}});
    assert_eq!(refused_at(&of_schema(&list), "[[],null,[[null]]]"), None);
    for missing in ["#/$defs/a~1b", "#/properties/a%2Fb", "#/$defs/title", "other.json#/a"] {
        let schema = json!({"properties": {"a/b": {"$ref": missing}}, "$defs": {"a": {"title": "title"}}});
        let why = WALKER.walk(&of_schema(&schema), 0).expect_err(missing);
        assert!(why.contains(missing) && why.contains("#/properties/a~1b"), "{why}");
    }
}

#[test]
fn an_error_of_a_pattern_has_its_cause() {
    for (pattern, cause) in
        [("(a", "unclosed group"), ("[z-a]", "invalid character class range"), ("(?=a)b", "look-around")]
    {
        for grammar in [
            Grammar::JsonSchema(json!({"properties": {"a": {"type": "string", "pattern": pattern}}})),
            Grammar::JsonSchema(json!({"patternProperties": {pattern: {}}})),
            Grammar::Regex(pattern.into()),
            Grammar::Lark(format!("start: /{pattern}/")),
        ] {
            let why = WALKER.walk(&grammar.clone().into(), 0).expect_err("it is no regular expression");
            assert!(why.contains(cause), "{grammar:?}: {why}");
        }
    }
}
