//! The parser of answers: any text in any format of tool calls, split into any deltas. The deltas must give the same result as the whole
//! text. Without thoughts and calls, no letter is lost.
#![no_main]

use std::sync::LazyLock;

use chat_format::{CallFormat, ChatEvent, OutputFormat, OutputParser, Tool, Tools};
use libfuzzer_sys::fuzz_target;
use mlx_fuzz::{halves, watch_panics};
use serde_json::json;

/// All formats of calls. An index past the end selects a parser without calls.
static FORMATS: LazyLock<Vec<CallFormat>> =
    LazyLock::new(|| CallFormat::names().filter_map(CallFormat::named).collect());

static TOOLS: LazyLock<Tools> = LazyLock::new(|| {
    let properties = json!({
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "near": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object", "properties": {"x": {"type": "number"}}},
        "note": {"type": ["string", "null"]},
    });
    let tool = |name: &str, properties: &serde_json::Value| {
        let parameters = json!({"type": "object", "properties": properties});
        Tool::read(json!({"type": "function", "function": {"name": name, "parameters": parameters}}))
    };
    let tools = [tool("get_weather", &properties), tool("f", &json!({}))];
    Tools::new(tools.into_iter().map(|tool| tool.expect("a tool")).collect()).expect("names differ")
});

/// The answer that a client assembles from the events.
#[derive(Debug, Default, PartialEq)]
struct Read {
    reasoning: String,
    text: String,
    /// Name, arguments, and true if the call has ended.
    calls: Vec<(String, String, bool)>,
}

impl Read {
    fn add(&mut self, events: Vec<ChatEvent>) {
        for event in events {
            match event {
                ChatEvent::Text(more) => self.text.push_str(&more),
                ChatEvent::Reasoning(more) => self.reasoning.push_str(&more),
                ChatEvent::CallStart { name, .. } => {
                    assert!(self.calls.last().is_none_or(|call| call.2), "one call after the other");
                    self.calls.push((name, String::new(), false));
                }
                ChatEvent::Args(more) => self.calls.last_mut().expect("a call has begun").1.push_str(&more),
                ChatEvent::CallEnd => self.calls.last_mut().expect("a call has begun").2 = true,
            }
        }
    }
}

fn read<'a>(mut parser: OutputParser, pieces: impl Iterator<Item = &'a str>, is_cut: bool) -> Read {
    let mut read = Read::default();
    for piece in pieces {
        read.add(parser.push(9, piece, piece));
    }
    read.add(parser.end("", is_cut));
    read
}

/// Splits a text into deltas with sizes from these bytes; without any, into letters.
fn pieces<'a>(text: &'a str, cuts: &[u8]) -> Vec<&'a str> {
    let mut sizes =
        cuts.iter().map(|size| usize::from(size % 16) + 1).collect::<Vec<_>>().into_iter().cycle();
    let (mut pieces, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(1);
        let end = rest.char_indices().nth(size).map_or(rest.len(), |(end, _)| end);
        let (piece, after) = rest.split_at(end);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

fn letters(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_whitespace()).collect()
}

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let [kind, flags, data @ ..] = data else { return };
    let (text, cuts) = halves(data);
    let text = String::from_utf8_lossy(text);
    let format = FORMATS.get(usize::from(*kind) % (FORMATS.len() + 1));
    let output = format.map_or_else(OutputFormat::plain, OutputFormat::of_calls);
    let has_headers = format.is_some_and(|format| ["gpt-oss", "muse-glimmer"].contains(&format.name()));
    let prompt = if has_headers { "<|start|>assistant" } else { "" };
    let mut parser = OutputParser::new(&output, prompt);
    if let Some(format) = format {
        parser = parser.with_calls(format, TOOLS.clone(), prompt);
    }
    parser = if flags & 1 > 0 { parser.requiring_section_markers() } else { parser };
    parser = if flags & 2 > 0 { parser.with_single_call() } else { parser };
    parser = if flags & 4 > 0 { parser.continuing() } else { parser };
    let is_cut = flags & 8 > 0;
    let whole = read(parser.clone(), std::iter::once(&*text), is_cut);
    let cut = read(parser, pieces(&text, cuts).into_iter(), is_cut);
    assert_eq!(whole, cut, "{:?}", format.map(CallFormat::name));
    // Tags of thoughts and channel headers are not text.
    let has_marks = text.contains("hink") || text.contains("THINK") || text.contains("<|") || text.contains("|>");
    let words = ["thought", "reasoning", "inner_", ">>>all", "FINAL RESPONSE"];
    let has_marks = has_marks || words.iter().any(|word| text.contains(word));
    // The parser drops an end-of-turn marker at the end of the text.
    let has_marks = has_marks || text.trim_end().ends_with(['>', ']', '[']);
    if whole.calls.is_empty() && whole.reasoning.is_empty() && !has_marks {
        assert_eq!(letters(&whole.text), letters(&text), "{:?}", format.map(CallFormat::name));
    }
});
