//! Checks that calls from a family's writer are parsed correctly, wherever the text is split.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::format::WrittenCall;
use crate::tool::Tool;

/// The result of a parser.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Read {
    pub(super) reasoning: String,
    pub(super) text: String,
    /// The name and arguments, and true if the call has ended.
    pub(super) calls: Vec<(String, String, bool)>,
    ids: Vec<Option<String>>,
}

impl Read {
    pub(super) fn add(&mut self, events: Vec<ChatEvent>) {
        for event in events {
            match event {
                ChatEvent::Text(more) => self.text.push_str(&more),
                ChatEvent::Reasoning(more) => self.reasoning.push_str(&more),
                ChatEvent::CallStart { id, name } => {
                    assert!(
                        self.calls.last().is_none_or(|(_, _, is_ended)| *is_ended),
                        "one call after the other"
                    );
                    self.calls.push((name, String::new(), false));
                    self.ids.push(id);
                }
                ChatEvent::Args(more) => self.calls.last_mut().expect("a call has begun").1.push_str(&more),
                ChatEvent::CallEnd => self.calls.last_mut().expect("a call has begun").2 = true,
            }
        }
    }
}

pub(super) fn tools(schemas: &[(&str, Value)]) -> Tools {
    let tool = |(name, parameters): &(&str, Value)| {
        let function = json!({"name": name, "parameters": parameters});
        Tool::read(json!({"type": "function", "function": function})).expect("a tool")
    };
    Tools::new(schemas.iter().map(tool).collect()).expect("names differ")
}

pub(super) fn weather() -> Tools {
    let properties = json!({
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "near": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object", "properties": {"x": {"type": "number"}, "label": {"type": "string"}}},
        "note": {"type": ["string", "null"]},
    });
    tools(&[("get_weather", json!({"type": "object", "properties": properties})), ("stop", json!({}))])
}

pub(super) fn parser(format: &CallFormat, tools: &Tools) -> OutputParser {
    let output = if format.is_on_channels() { OutputFormat::of_calls(format) } else { think() };
    let prompt = if format.is_on_channels() { "<|start|>assistant" } else { "" };
    OutputParser::new(&output, prompt).with_calls(format, tools.clone(), prompt)
}

pub(super) fn think() -> OutputFormat {
    OutputFormat::tags(("<think>", None), "", ("</think>", None))
}

/// Parses chunks of text. `is_cut` is true if a limit ends the output.
pub(super) fn read_pieces<'a>(
    mut parser: OutputParser,
    pieces: impl Iterator<Item = &'a str>,
    is_cut: bool,
) -> Read {
    let mut read = Read::default();
    for piece in pieces {
        read.add(parser.push(9, piece, piece));
    }
    read.add(parser.end("", is_cut));
    read
}

/// Parses a text whole, character by character, and split in two at every position. Checks that all results
/// are equal.
pub(super) fn read(format: &CallFormat, tools: &Tools, text: &str, is_cut: bool) -> Read {
    let parser = || parser(format, tools);
    let whole = read_pieces(parser(), [text].into_iter(), is_cut);
    let letters = text.char_indices().map(|(at, letter)| &text[at..at + letter.len_utf8()]);
    assert_eq!(read_pieces(parser(), letters, is_cut), whole, "{}: {text}", format.name());
    for (at, _) in text.char_indices() {
        let (one, other) = text.split_at(at);
        assert_eq!(
            read_pieces(parser(), [one, other].into_iter(), is_cut),
            whole,
            "{}: {text}",
            format.name()
        );
    }
    whole
}

pub(super) fn named(name: &str) -> CallFormat {
    CallFormat::named(name).expect("a format")
}

pub(super) fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().expect("an object")
}

pub(super) fn written(format: &CallFormat, calls: &[(&str, Map<String, Value>)]) -> String {
    let ids: Vec<String> = calls
        .iter()
        .enumerate()
        .map(|(index, (name, _))| match format.ids() {
            crate::format::Ids::NameAndIndex => format!("functions.{name}:{index}"),
            _ => format!("call{index}"),
        })
        .collect();
    let exact = |arguments: &Map<String, Value>| {
        mlx_json::Value::from(Value::Object(arguments.clone())).into_object()
    };
    let arguments: Vec<_> = calls.iter().map(|(_, it)| exact(it).expect("an object")).collect();
    let written = calls.iter().zip(&arguments).zip(&ids);
    let written = written.map(|(((name, _), arguments), id)| WrittenCall { id, name, arguments });
    let calls: Vec<WrittenCall> = written.collect();
    format.write(&calls)
}

/// Returns true if an answer in this format can contain several calls.
fn is_parallel(format: &CallFormat) -> bool {
    !format.syntax().family.only_first && format.name() != "gpt-oss"
}

#[test]
fn every_format_reads_what_it_writes() {
    let tools = weather();
    for format in CallFormat::all() {
        let first = object(&json!({
            "city": "São \"P\" <b> & 'x'\nline 2\\n", "days": 3, "exact": true, "near": ["a", "b c"],
            "where": {"x": -1.5, "label": "42"}, "note": "null and void",
        }));
        let calls = [("get_weather", first), ("stop", Map::new())];
        let calls = if is_parallel(&format) { &calls[..] } else { &calls[..1] };
        let thought = if format.is_on_channels() { "" } else { "<think>\nHm <tool_call>\n</think>\n\n" };
        let before =
            if format.syntax().family.only_first || format.is_on_channels() { "" } else { "Let me see.\n\n" };
        let text = [thought, before, &written(&format, calls)].concat();
        let read = read(&format, &tools, &text, false);
        let expected = (before.trim_end(), if thought.is_empty() { "" } else { "Hm <tool_call>" });
        assert_eq!((read.text.as_str(), read.reasoning.as_str()), expected, "{}: {text}", format.name());
        assert_eq!(read.calls.len(), calls.len(), "{}: {text}\n{read:?}", format.name());
        for ((name, args, is_ended), (expected_name, expected)) in read.calls.iter().zip(calls) {
            let args: Map<String, Value> = serde_json::from_str(args).expect("valid JSON");
            assert_eq!(
                (name.as_str(), &args, *is_ended),
                (*expected_name, expected, true),
                "{}",
                format.name()
            );
        }
    }
}

/// Returns true if some continuation makes this text a valid JSON object.
fn is_prefix_of_json(text: &str) -> bool {
    let (mut open, mut in_text, mut is_escaped) = (Vec::new(), false, false);
    for letter in text.chars() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if in_text => is_escaped = true,
            '"' => in_text = !in_text,
            '{' if !in_text => open.push('}'),
            '[' if !in_text => open.push(']'),
            '}' | ']' if !in_text => drop(open.pop()),
            _ => {}
        }
    }
    let closers: String = open.iter().rev().collect();
    let escape = text.rfind('\\').map_or(String::new(), |at| text[at..].to_owned());
    let digits = if is_escaped { "n".to_owned() } else { "0".repeat(6_usize.saturating_sub(escape.len())) };
    let ends = ["", "\"", &format!("{digits}\""), "\":0", &format!("{digits}\":0"), ":0", "0", "\"k\":0"];
    let valid =
        |end: &&str| serde_json::from_str::<Map<String, Value>>(&format!("{text}{end}{closers}")).is_ok();
    ends.iter().any(valid) || closers.is_empty() && text.is_empty()
}

fn value() -> impl Strategy<Value = Value> {
    let text = "[a-zé\"'\\\\\n,:<>{}\\[\\]= ]{0,12}".prop_filter("markers end texts", |text| {
        !["</", "<param", "]]>", "]<"].iter().any(|marker| text.contains(marker))
    });
    let leaf = prop_oneof![
        text.prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        (-1000..1000_i32).prop_map(|number| Value::from(f64::from(number) / 8.0)),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,4}", inner, 1..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Returns the schema of a value.
fn schema(value: &Value) -> Value {
    match value {
        Value::String(_) => json!({"type": "string"}),
        Value::Number(_) => json!({"type": "number"}),
        Value::Bool(_) => json!({"type": "boolean"}),
        Value::Null => json!({"type": "null"}),
        Value::Array(items) => {
            let schemas: Vec<Value> = items.iter().map(schema).collect();
            let is_one = schemas.iter().all(|other| *other == schemas[0]);
            json!({"type": "array", "items": if is_one { schemas[0].clone() } else { json!({}) }})
        }
        Value::Object(map) => {
            let properties: Map<String, Value> =
                map.iter().map(|(key, value)| (key.clone(), schema(value))).collect();
            json!({"type": "object", "properties": properties})
        }
    }
}

/// Returns true if lists have one item type. Elements have no types of their own, so mixed lists do not
/// round-trip.
fn is_uniform(value: &Value) -> bool {
    match value {
        Value::Array(items) => {
            items.iter().all(is_uniform) && items.iter().all(|item| schema(item) == schema(&items[0]))
        }
        Value::Object(map) => map.values().all(is_uniform),
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_calls_are_read_however_they_are_cut(
        arguments in prop::collection::btree_map("[a-z_]{1,6}", value(), 0..4),
        which in 0..CallFormat::names().count(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let format = CallFormat::all().nth(which).expect("a format");
        let arguments: Map<String, Value> = arguments.into_iter().collect();
        prop_assume!(format.name() != "minimax-m3" || arguments.values().all(is_uniform));
        let tools = tools(&[("f", schema(&Value::Object(arguments.clone())))]);
        let text = written(&format, &[("f", arguments.clone())]);
        let mut places: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(cut.index(text.len() + 1))).collect();
        places.extend([0, text.len()]);
        places.sort_unstable();
        let mut parser = parser(&format, &tools);
        let mut read = Read::default();
        for pair in places.windows(2) {
            let piece = &text[pair[0]..pair[1]];
            read.add(parser.push(9, piece, piece));
            for (_, args, _) in &read.calls {
                prop_assert!(is_prefix_of_json(args), "{}: {args}", format.name());
            }
        }
        read.add(read_end(&mut parser));
        prop_assert_eq!(read.calls.len(), 1, "{}: {:?} of {}", format.name(), read, text);
        let (name, args, is_ended) = &read.calls[0];
        let args: Map<String, Value> = serde_json::from_str(args).expect("valid JSON");
        prop_assert_eq!((name.as_str(), &args, *is_ended), ("f", &arguments, true), "{}: {}", format.name(), text);
        prop_assert_eq!(&read.text, "", "{}: {}", format.name(), text);
    }

    #[test]
    fn random_text_is_read_the_same_however_it_is_cut(
        words in prop::collection::vec(prop::sample::select(&WORDS[..]), 0..9),
        which in 0..CallFormat::names().count(),
        is_cut: bool,
    ) {
        let format = CallFormat::all().nth(which).expect("a format");
        let read = read(&format, &weather(), &words.concat(), is_cut);
        for (_, args, _) in &read.calls {
            prop_assert!(is_prefix_of_json(args), "{}: {args}", format.name());
        }
    }
}

const WORDS: [&str; 44] = [
    "<tool_call>",
    "</tool_call>",
    "\n",
    " ",
    "{\"name\": \"get_weather\", ",
    "\"arguments\": {\"city\": \"P",
    "\"}",
    "}",
    "<function=get_weather>",
    "<parameter=city>",
    "</parameter>",
    "</function>",
    "Paris",
    "get_weather",
    "[TOOL_CALLS]",
    "[ARGS]",
    "{",
    "[",
    "]",
    ",",
    "<think>",
    "</think>",
    "<arg_key>city</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|tool_call>call:",
    "{city:<|\"|>",
    "<|\"|>}",
    "<tool_call|>",
    "<|tool_call_start|>",
    "(city='",
    "')",
    "é",
    "\\",
    "<|channel|>commentary to=functions.get_weather",
    "<|message|>",
    "<|call|>",
    "<|start|>assistant",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "null",
    "1",
];

pub(super) fn read_end(parser: &mut OutputParser) -> Vec<ChatEvent> {
    parser.end("", false)
}
