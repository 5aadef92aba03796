//! Checks that every tokenization of an output gives the same thoughts and answers, and loses nothing.

use proptest::prelude::*;

use super::*;

const START: u32 = 1;
const CHANNEL: u32 = 2;
const MESSAGE: u32 = 3;
const END: u32 = 4;
const OPEN: u32 = 5;
const CLOSE: u32 = 6;
const TEXT: u32 = 9;

/// A part of an output: text, or a special token.
#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Text(String),
    Special(u32),
}

fn spelled() -> OutputFormat {
    OutputFormat::tags(("<think>", None), "", ("</think>", None))
}

fn special() -> OutputFormat {
    OutputFormat::tags(("<|channel>", Some(OPEN)), "thought", ("<channel|>", Some(CLOSE)))
}

fn harmony() -> OutputFormat {
    OutputFormat::channels([START, CHANNEL, MESSAGE, END])
}

/// Runs a parser over tokens. About `lag` bytes of text are released with a later token, as with stop strings.
fn run(format: &OutputFormat, prompt: &str, pieces: &[Piece], lag: usize) -> (String, String) {
    let mut parser = OutputParser::new(format, prompt);
    let mut held = String::new();
    let mut events = Vec::new();
    for piece in pieces {
        let (id, text) = match piece {
            Piece::Text(text) => (TEXT, text.clone()),
            Piece::Special(id) => (*id, String::new()),
        };
        held.push_str(&text);
        let release = held.floor_char_boundary(held.len().saturating_sub(lag));
        let rest = held.split_off(release);
        let delta = std::mem::replace(&mut held, rest);
        events.extend(parser.push(id, &text, &delta));
    }
    events.extend(parser.end(&held, false));
    let (mut reasoning, mut text) = (String::new(), String::new());
    for event in events {
        match event {
            ChatEvent::Text(more) => text.push_str(&more),
            ChatEvent::Reasoning(more) => reasoning.push_str(&more),
            _ => panic!("no calls are read"),
        }
    }
    (reasoning, text)
}

/// Splits the text of `pieces` into characters.
fn letters(pieces: &[Piece]) -> Vec<Piece> {
    let cut = |piece: &Piece| match piece {
        Piece::Text(text) => text.chars().map(|letter| Piece::Text(letter.to_string())).collect(),
        Piece::Special(_) => vec![piece.clone()],
    };
    pieces.iter().flat_map(cut).collect()
}

/// Returns the thought and the answer. Checks that they do not depend on how the text is split and released.
fn split(format: &OutputFormat, prompt: &str, pieces: &[Piece]) -> (String, String) {
    let whole = run(format, prompt, pieces, 0);
    for lag in [0, 1, 3, 100] {
        assert_eq!(run(format, prompt, &letters(pieces), lag), whole, "{pieces:?} with a lag of {lag}");
        assert_eq!(run(format, prompt, pieces, lag), whole, "{pieces:?} with a lag of {lag}");
    }
    whole
}

fn text(text: &str) -> Piece {
    Piece::Text(text.to_owned())
}

fn parts(reasoning: &str, text: &str) -> (String, String) {
    (reasoning.to_owned(), text.to_owned())
}

#[test]
fn thought_and_answer_part_at_the_tags() {
    let split = |prompt: &str, written: &str| split(&spelled(), prompt, &[text(written)]);
    assert_eq!(split("", "<think>\na < b é\n</think>\n\nyes\n"), parts("a < b é", "yes\n"));
    assert_eq!(split("", "\n<think></think>yes"), parts("", "yes"));
    assert_eq!(split("…<think>\n", "so\n\nthen </think> yes"), parts("so\n\nthen", "yes"));
    assert_eq!(split("…<think>\n\n</think>\n\n", "yes"), parts("", "yes"));
    assert_eq!(split("", "<thinking is hard"), parts("", "<thinking is hard"));
    assert_eq!(split("", "say <think> twice </think>"), parts("", "say <think> twice </think>"));
    assert_eq!(split("", "<think>a</think>b</think>c"), parts("a", "b</think>c"));
    assert_eq!(split("", "  spaces stay"), parts("", "  spaces stay"));
}

#[test]
fn an_end_in_the_middle_loses_nothing() {
    let split = |written: &str| split(&spelled(), "", &[text(written)]);
    assert_eq!(split("<thi"), parts("", "<thi"));
    assert_eq!(split("<think>never </thi"), parts("never </thi", ""));
    assert_eq!(split(" \n"), parts("", " \n"));
}

#[test]
fn tags_may_be_special_tokens_with_a_label() {
    let (open, close) = (Piece::Special(OPEN), Piece::Special(CLOSE));
    let split = |prompt: &str, pieces: &[Piece]| split(&special(), prompt, pieces);
    let once = [open.clone(), text("thought\n a "), close.clone(), text(" b")];
    assert_eq!(split("", &once), parts("a", "b"));
    assert_eq!(split("…<|channel>thought\n", &[text("a"), close.clone(), text("b")]), parts("a", "b"));
    // A special token is a marker anywhere. A text that is spelled like it is only text.
    let twice = [&once[..], &[open.clone(), text("thoughts"), close.clone(), text("c")]].concat();
    assert_eq!(split("", &twice), parts("a\n\ns", "bc"));
    assert_eq!(split("", &[close, text("<|channel>thought")]), parts("", "<|channel>thought"));
    assert_eq!(split("", &[open, text("tho")]), parts("tho", ""));
}

#[test]
fn only_what_is_uncertain_is_held_back() {
    let mut parser = OutputParser::new(&spelled(), "<think>");
    let mut push = |text: &str| parser.push(TEXT, text, text);
    assert_eq!(push("a b"), [ChatEvent::Reasoning("a b".into())]);
    assert_eq!(push(" <"), []);
    assert_eq!(push("c"), [ChatEvent::Reasoning(" <c".into())]);
}

#[test]
fn channels_are_thoughts_and_answers() {
    let split = |prompt: &str, pieces: &[Piece]| split(&harmony(), prompt, pieces);
    let on = |channel: &str, body: &str| {
        vec![Piece::Special(CHANNEL), text(channel), Piece::Special(MESSAGE), text(body), Piece::Special(END)]
    };
    let next = || vec![Piece::Special(START), text("assistant")];
    let prompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant";
    let usual = [on("analysis", "They greet."), next(), on("final", "Hello!")].concat();
    assert_eq!(split(prompt, &usual), parts("They greet.", "Hello!"));
    // A preamble is for the user. So is a tool call if calls are not parsed.
    let call = on("commentary to=functions.add ", "{\"a\": 1}");
    let more = [
        on("analysis", "A"),
        next(),
        on("analysis", "B"),
        next(),
        on("commentary", "Let me see."),
        next(),
        call,
    ];
    assert_eq!(split(prompt, &more.concat()), parts("A\n\nB", "Let me see.\n\n{\"a\": 1}"));
    assert_eq!(split("…<|start|>assistant<|channel|>final<|message|>", &[text("Yes")]), parts("", "Yes"));
    assert_eq!(split("…<|start|>assistant<|channel|>analysis<|message|>", &[text("Hm")]), parts("Hm", ""));
}

#[test]
fn a_header_that_is_none_is_text() {
    let split = |pieces: &[Piece]| split(&harmony(), "<|start|>assistant", pieces);
    assert_eq!(split(&[text("Hello")]), parts("", "Hello"));
    assert_eq!(split(&[text("a\nb"), Piece::Special(END)]), parts("", "a\nb"));
    assert_eq!(split(&[text(&"long ".repeat(40))]), parts("", &"long ".repeat(40)));
    assert_eq!(split(&[Piece::Special(END), text("a"), Piece::Special(MESSAGE)]), parts("", "a"));
    // The token limit was reached in the middle of a header.
    assert_eq!(split(&[Piece::Special(CHANNEL), text("anal")]), parts("", ""));
    assert_eq!(split(&[text("a"), Piece::Special(CHANNEL), text("final")]), parts("", ""));
}

#[test]
fn a_stop_string_drops_the_markers_after_it() {
    let mut parser = OutputParser::new(&special(), "");
    assert_eq!(parser.push(TEXT, "a STOP", "a "), [ChatEvent::Text("a".into())]);
    assert_eq!(parser.push(OPEN, "", ""), []);
    assert_eq!(parser.end("", true), [ChatEvent::Text(" ".into())]);
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    const WORDS: [&str; 10] =
        ["<think>", "</think>", "<", "/think>", "thought", " \n", "é", "final", "analysis", "a"];
    let piece = prop_oneof![
        3 => prop::sample::select(&WORDS[..]).prop_map(text),
        1 => (START..=CLOSE).prop_map(Piece::Special),
    ];
    prop::collection::vec(piece, 0..24)
}

proptest! {
    #[test]
    fn events_do_not_depend_on_the_cuts(pieces in pieces(), opened: bool) {
        for (format, open) in [(spelled(), "<think>"), (special(), "<|channel>thought"), (harmony(), "<|start|>assistant")] {
            split(&format, if opened { open } else { "" }, &pieces);
        }
    }

    #[test]
    fn nothing_but_tags_and_white_space_is_lost(words in prop::collection::vec("[a-c<>/ \\n]{0,5}", 0..12), opened: bool) {
        let written = words.join("</think>");
        let (reasoning, answer) = split(&spelled(), if opened { "<think>" } else { "" }, &[text(&written)]);
        let bare = |text: &str| text.split_whitespace().collect::<String>().replace("</think>", "");
        prop_assert_eq!(bare(&(reasoning + &answer)), bare(&written));
    }
}
