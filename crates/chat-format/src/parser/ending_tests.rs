//! Tests every family with typical beginnings and endings: thoughts, text and calls are separated, they contain no
//! markers, and chunk boundaries change nothing.

use serde_json::{Map, json};

use super::call_tests::{Read, named, object, read_pieces, weather, written};
use super::*;
use crate::format::{AnswerFormat, turn_ends};

/// Parses a text whole, character by character, and in random chunks. Checks that all results are equal.
fn read(parser: &OutputParser, text: &str) -> Read {
    let whole = read_pieces(parser.clone(), [text].into_iter(), false);
    let letters = text.char_indices().map(|(at, letter)| &text[at..at + letter.len_utf8()]);
    assert_eq!(read_pieces(parser.clone(), letters, false), whole, "{text:?}");
    let mut random = text.len();
    for _ in 0..3 {
        let mut rest = text;
        let pieces = std::iter::from_fn(|| {
            random = (random * 1_103_515_245 + 12_345) % (1 << 31);
            let (piece, after) = rest.split_at(rest.ceil_char_boundary(1 + random / 65_536 % 23));
            rest = after;
            (!piece.is_empty()).then_some(piece)
        });
        assert_eq!(read_pieces(parser.clone(), pieces, false), whole, "{text:?}");
    }
    whole
}

/// Like [`read`], but also splits the text in two at every position.
fn read_at_every_cut(parser: &OutputParser, text: &str) -> Read {
    let whole = read(parser, text);
    for (at, _) in text.char_indices() {
        let (one, other) = text.split_at(at);
        assert_eq!(read_pieces(parser.clone(), [one, other].into_iter(), false), whole, "{text:?} at {at}");
    }
    whole
}

/// A format with calls inside the answer.
struct Family {
    calls: CallFormat,
    output: OutputFormat,
}

impl Family {
    fn all() -> impl Iterator<Item = Self> {
        let all = CallFormat::all().filter(|calls| !calls.is_on_channels());
        all.map(|calls| Self { output: OutputFormat::of_calls(&calls), calls })
    }

    fn answer(&self) -> &AnswerFormat {
        match self.output.kind() {
            Kind::Answer(answer) => answer,
            Kind::Channels(_) => panic!("{} has no channels", self.calls.name()),
        }
    }

    fn tags(&self) -> (&'static str, &'static str) {
        let tags = self.answer().thoughts.as_ref().expect("each family names its tags");
        (tags.open.text, tags.close.text)
    }

    fn parser(&self, is_open: bool) -> OutputParser {
        let prompt = if is_open { format!("Hi{}\n", self.tags().0) } else { "Hi".to_owned() };
        OutputParser::new(&self.output, &prompt).with_calls(&self.calls, weather(), &prompt)
    }

    fn call(&self, count: usize) -> String {
        let arguments = object(&json!({"city": "Brest", "days": 3}));
        let calls = [("get_weather", arguments), ("stop", Map::new())];
        written(&self.calls, &calls[..count])
    }

    /// Fails if a marker of the family remains in the text or the thoughts.
    fn check_markers(&self, read: &Read, text: &str) {
        let syntax = self.calls.syntax();
        let sections = syntax.section.iter().flat_map(|(open, close)| open.iter().chain(close));
        let answer = self.answer();
        let tags = answer.thoughts.iter().flat_map(|tags| [&tags.open.pattern, &tags.close.pattern]);
        for marker in sections.chain(&answer.silent).chain(&answer.ends).chain(tags) {
            let marker = std::str::from_utf8(marker).expect("special tokens are spelled out");
            let is_left = read.text.contains(marker) || read.reasoning.contains(marker);
            assert!(!is_left, "{}: {marker} of {text:?} in {read:?}", self.calls.name());
        }
    }
}

/// The beginning of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Thought {
    None,
    Closed,
    ClosedTwice,
    LoneClose,
    OpenedTwice,
    NeverClosed,
}

#[test]
fn parts_come_apart_whatever_a_family_begins_and_ends_with() {
    use Thought::{Closed, ClosedTwice, LoneClose, NeverClosed, None, OpenedTwice};
    for family in Family::all() {
        let (open, close) = family.tags();
        let counts = if family.calls.syntax().family.only_first { 0..1 } else { 0..3 };
        let ends: Vec<&str> = turn_ends().collect();
        for (case, thought) in
            [None, Closed, ClosedTwice, LoneClose, OpenedTwice, NeverClosed].into_iter().enumerate()
        {
            let (before, is_open, reasoning) = match thought {
                None => (String::new(), false, ""),
                Closed => (format!("{open}\nHm.\n{close}\n\n"), false, "Hm."),
                ClosedTwice => (format!("Hm.{close}\n{close}\n"), true, "Hm."),
                LoneClose => (format!("\n{close}\n\n"), false, ""),
                OpenedTwice => (format!("{open}\nHm.{close}"), true, "Hm."),
                NeverClosed => ("Hm.\n\n".to_owned(), true, "Hm."),
            };
            for count in counts.clone() {
                for (one, other) in [("", ""), ("I call ", ""), ("I call ", " now"), ("", "Now")] {
                    // Text in an open thought is part of it, and text without a call is a single text.
                    let is_apart = thought != NeverClosed || one.is_empty() && other.is_empty();
                    if !is_apart || count == 0 && !other.is_empty() {
                        continue;
                    }
                    let calls = if count > 0 { family.call(count) } else { String::new() };
                    let end = ends[(case * 7 + count * 3 + one.len() + other.len()) % ends.len()];
                    let endings = ["", close, end, &format!("\n{close}\n{end}"), &format!("{end}\n")];
                    for ending in
                        [endings[(case + count) % 5], endings[(case + count + 1 + one.len() % 3) % 5]]
                    {
                        let text = format!("{before}{one}{calls}{other}{ending}");
                        let read = read(&family.parser(is_open), &text);
                        let name = family.calls.name();
                        assert_eq!(read.reasoning, reasoning, "{name}: {text:?}");
                        let expected = format!("{one}{other}");
                        assert_eq!(read.text.trim_end(), expected.trim_end(), "{name}: {text:?}");
                        let names: Vec<&str> = read.calls.iter().map(|(name, ..)| name.as_str()).collect();
                        assert_eq!(names, ["get_weather", "stop"][..count], "{name}: {text:?}");
                        family.check_markers(&read, &text);
                    }
                }
            }
        }
    }
}

#[test]
fn a_call_that_is_only_thought_of_stays_a_thought() {
    for family in Family::all().filter(|family| !family.calls.syntax().family.only_first) {
        let (_, close) = family.tags();
        let (call, name) = (family.call(1), family.calls.name());
        for (text, answer) in [
            (format!("Perhaps {call}{close}Yes."), "Yes."),
            (format!("Perhaps {call} or not.\n{close}\n\nYes."), "Yes."),
            (format!("Perhaps {call} or not."), ""),
            (format!("Perhaps {call}{call} or not{close}"), ""),
        ] {
            let read = read(&family.parser(true), &text);
            assert_eq!((read.text.as_str(), read.calls.len()), (answer, 0), "{name}: {text:?}");
            assert!(read.reasoning.starts_with("Perhaps ") && read.reasoning.contains("Brest"), "{read:?}");
        }
        // A strict tool only accepts calls that a grammar constrained.
        let text = format!("Perhaps {call}");
        let strict = family.parser(true).requiring_section_markers();
        assert_eq!(read(&strict, &text).calls, [], "{name}");
        // After the thought, the same call is valid.
        let text = format!("Perhaps {call} or not.{close}{call}");
        let read = read(&family.parser(true), &text);
        assert_eq!((read.text.as_str(), read.calls.len()), ("", 1), "{name}: {text:?}");
    }
}

#[test]
fn a_call_that_is_cut_within_a_thought_is_a_part_of_it() {
    let family = Family { calls: named("hermes"), output: OutputFormat::of_calls(&named("hermes")) };
    let text = "Hm.\n<tool_call>\n{\"name\": \"stop\", \"arguments\": {\"a\": \"b";
    let read = read_pieces(family.parser(true), [text].into_iter(), true);
    assert_eq!((read.reasoning.as_str(), read.calls.len()), (text, 0));
}

#[test]
fn white_space_between_two_texts_is_theirs() {
    let hermes = Family { calls: named("hermes"), output: OutputFormat::of_calls(&named("hermes")) };
    let call = hermes.call(1);
    for (text, expected) in [
        (format!("I call {call} now"), "I call  now"),
        (format!("I call\n\n{call}\n"), "I call"),
        (format!("\n\n{call}\n\nDone.\n"), "Done.\n"),
        (format!("a{call}b"), "ab"),
        (format!("One \n{call}\n{call} two {call}"), "One \n two"),
        (format!("a <tool_call> b {call} c"), "a <tool_call> b  c"),
        (format!("<think>Hm</think> a {call} b"), "a  b"),
    ] {
        assert_eq!(read_at_every_cut(&hermes.parser(false), &text).text, expected, "{text:?}");
    }
    let channels = OutputFormat::of_calls(&named("gemma-4"));
    let parser = OutputParser::new(&channels, "").with_calls(&named("gemma-4"), weather(), "");
    let read = read_at_every_cut(&parser, "One <|tool_call>call:stop{}<tool_call|> two.");
    assert_eq!((read.text.as_str(), read.calls.len()), ("One  two.", 1));
}

#[test]
fn outputs_of_named_families() {
    let atem = "<atem:function_calls>\n<atem:invoke name=\"get_weather.get_weather\">\n<atem:parameter name=\"city\">Brest</atem:parameter>\n</atem:invoke>\n</atem:function_calls>";
    let call = |arguments: &str| vec![("get_weather".to_owned(), arguments.to_owned(), true)];
    let brest = || call("{\"city\":\"Brest\"}");
    let started = "<|start|>assistant";
    for (format, prompt, text, reasoning, content, calls) in [
        ("qwen3-coder", "<think>\n", "Look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBrest\n</parameter>\n</function>\n</tool_call>".to_owned(), "Look.", "", brest()),
        ("deepseek-v4", "<think>", "Look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Brest</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>".to_owned(), "Look.", "", brest()),
        ("glm-4.5", "\n<think>", "Look.\n<tool_call>get_weather<arg_key>city</arg_key>\n<arg_value>Brest</arg_value>\n</tool_call><|role_end|>".to_owned(), "Look.", "", brest()),
        ("kimi-k2", "", "<think>Look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\":\"Brest\"}<|tool_call_end|><|tool_calls_section_end|>".to_owned(), "Look.", "", brest()),
        ("minimax-m3", "ai\n", "</mm:think>Hello.".to_owned(), "", "Hello.", Vec::new()),
        ("gemma-4", "", "<|channel>thought\nLook.<channel|>Hello.<channel|><turn|>".to_owned(), "Look.", "Hello.", Vec::new()),
        ("apriel", "Here are my reasoning steps:\n", "Look.\n[BEGIN FINAL RESPONSE]\nHello.\n[END FINAL RESPONSE]\n<|end|>".to_owned(), "Look.", "Hello.", Vec::new()),
        ("apriel", "Here are my reasoning steps:\n", "Look.\n[BEGIN FINAL RESPONSE]\n<tool_calls>[{\"name\": \"get_weather\", \"arguments\": {\"city\":\"Brest\"}}]</tool_calls>\n<|end|>".to_owned(), "Look.", "", brest()),
        ("solar", "<|begin|>assistant", "<|think|>Look.<|end|><|begin|>assistant<|content|>Hello.<|end|>".to_owned(), "Look.", "Hello.", Vec::new()),
        ("muse-glimmer", started, " to=self<|message|>Look.<|eom|><|start|>assistant to=user<|message|>Hello.<|eot|>".to_owned(), "Look.", "Hello.", Vec::new()),
        ("muse-glimmer", started, " to=self<|message|>Look.<|start|>assistant to=user<|message|>Hello.".to_owned(), "Look.", "Hello.", Vec::new()),
        ("muse-glimmer", started, " to=user<|message|>Hello, say to=user.<|eot|>".to_owned(), "", "Hello, say to=user.", Vec::new()),
        ("muse-glimmer", started, format!(" to=self<|message|>Look.<|eom|><|start|>assistant to=get_weather<|message|>{atem}<|eot|>"), "Look.", "", brest()),
        ("muse-glimmer", started, format!(" to=self<|message|>{atem}<|eom|>to=user<|message|>{atem}<|eot|>"), atem, atem, Vec::new()),
        ("muse-glimmer", "<|start|>assistant to=user<|message|>", "Hello.<|eot|><|end_of_text|>".to_owned(), "", "Hello.", Vec::new()),
        ("gpt-oss", started, "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>".to_owned(), "Look.", "Hello.", Vec::new()),
    ] {
        let calls_format = named(format);
        let output = OutputFormat::of_calls(&calls_format);
        let parser = OutputParser::new(&output, prompt).with_calls(&calls_format, weather(), prompt);
        let read = read_at_every_cut(&parser, &text);
        assert_eq!((read.reasoning.as_str(), read.text.as_str(), read.calls), (reasoning, content, calls), "{format}: {text}");
    }
}

/// No request declares the model's built-in tools, which take code.
#[test]
fn code_for_an_undeclared_tool_is_a_call() {
    let format = named("gpt-oss");
    let output = OutputFormat::of_calls(&format);
    let start = "<|start|>assistant";
    let parser = OutputParser::new(&output, start).with_calls(&format, weather(), start);
    for (header, body, arguments) in [
        (
            "<|channel|>analysis to=python <|constrain|>code",
            "\nprint(\"a\\n\")\n",
            json!({"code": "\nprint(\"a\\n\")"}),
        ),
        (" to=python<|channel|>analysis", "x = {1}", json!({"code": "x = {1}"})),
        ("<|channel|>commentary to=python code", "{\"code\": \"1\"}", json!({"code": "1"})),
        ("<|channel|>analysis to=browser.search", " {\"query\": \"tides\"}", json!({"query": "tides"})),
        ("<|channel|>commentary to=browser.open<|constrain|>json", "{\"id\": 1}", json!({"id": 1})),
        ("<|channel|>commentary to=get_weather", "Brest", json!({"code": "Brest"})),
    ] {
        let text =
            format!("<|channel|>analysis<|message|>Look.<|end|>{start}{header}<|message|>{body}<|call|>");
        let read = read_at_every_cut(&parser, &text);
        assert_eq!(
            (read.reasoning.as_str(), read.text.as_str(), read.calls.len()),
            ("Look.", "", 1),
            "{text}"
        );
        let (name, args, is_ended) = &read.calls[0];
        assert!(header.contains(&format!("to={name}")) && *is_ended, "{text}: {name}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(args).expect("valid JSON"), arguments, "{text}");
    }
    // Without tools, a message to a tool on the analysis channel is a thought.
    let text = "<|channel|>analysis to=python code<|message|>1 + 1<|call|>";
    let read = read_at_every_cut(&OutputParser::new(&output, start), text);
    assert_eq!((read.reasoning.as_str(), read.text.as_str()), ("1 + 1", ""));
}
