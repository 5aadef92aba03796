//! Parses a value incrementally and writes it as JSON. It accepts JSON, Python literals, and maps with unquoted keys.
//! The output is always the beginning of a valid JSON text.

use super::escape::{EscapeReader, Escaped};
use super::input::{Flow, Input, Seen};
use crate::format::{Pattern, SPECIAL, SPECIAL_BYTES};

/// The maximum nesting of values. Clients do not accept deeper ones.
const DEEPEST: usize = 100;
/// The maximum length of a number or an unquoted word.
const LONGEST_WORD: usize = 512;

/// A value that is being parsed.
#[derive(Debug, Clone)]
pub(super) struct ValueReader {
    /// A quote for texts besides quotation marks. If it is set, unquoted words are texts too.
    quote: Option<Pattern>,
    /// The open maps and lists.
    open: Vec<Bracket>,
    stage: Stage,
    /// A comma and whitespace, written when another item follows.
    between: Vec<u8>,
}

/// An open map or list.
#[derive(Debug, Clone, Copy)]
struct Bracket {
    close: u8,
    /// The separator of key and value. A list has none.
    sign: Option<u8>,
}

#[derive(Debug, Clone)]
enum Stage {
    /// Before a value or a key, or the end of a map or list.
    Item,
    /// After a key.
    Sign,
    /// Before the value of a key, or the only value.
    Value,
    Text {
        quote: Quote,
        is_key: bool,
        escape: EscapeReader,
    },
    /// A number, a constant, or an unquoted key.
    Word {
        text: Vec<u8>,
        is_key: bool,
    },
    /// After a value or a comma.
    After,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quote {
    Mark(u8),
    Pattern,
}

impl ValueReader {
    /// Returns a reader of any value.
    pub(super) fn new() -> Self {
        Self { quote: None, open: Vec::new(), stage: Stage::Value, between: Vec::new() }
    }

    /// Returns a reader of a value with this quote around its texts.
    pub(super) fn quoted(quote: Pattern) -> Self {
        Self { quote: Some(quote), ..Self::new() }
    }

    /// Returns a reader of the arguments of a Python call, after the opening parenthesis.
    pub(super) fn arguments() -> Self {
        Self { open: vec![Bracket { close: b')', sign: Some(b'=') }], stage: Stage::Item, ..Self::new() }
    }

    /// Returns true if no part of the value was read.
    pub(super) fn is_new(&self) -> bool {
        self.open.is_empty() && matches!(self.stage, Stage::Value)
    }

    /// Reads all available input.
    pub(super) fn read(&mut self, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        loop {
            match self.step(input, out) {
                Flow::Go => {}
                flow => return flow,
            }
        }
    }

    fn step(&mut self, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        let Some(byte) = input.peek() else { return self.at_end(input, out) };
        match &mut self.stage {
            Stage::Done => Flow::Done,
            Stage::Text { .. } => self.text(byte, input, out),
            Stage::Word { .. } => self.word(byte, input, out),
            _ if byte.is_ascii_whitespace() => {
                input.advance(1);
                self.space(byte, out);
                Flow::Go
            }
            Stage::Sign => self.sign(byte, input, out),
            Stage::Value => self.value(byte, input, out),
            Stage::Item => self.item(byte, input, out),
            Stage::After => self.after(byte, input, out),
        }
    }

    fn at_end(&mut self, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        match &self.stage {
            Stage::Done => Flow::Done,
            // A truncated constant ends with its call.
            Stage::Word { text, is_key: false } if input.is_ended => match self.word_value(text) {
                None if input.is_cut => Flow::Wait,
                _ => self.end_word(input, out),
            },
            _ => Flow::Wait,
        }
    }

    /// Copies whitespace unchanged, except before a comma.
    fn space(&mut self, byte: u8, out: &mut Vec<u8>) {
        match self.stage {
            Stage::Item if !self.between.is_empty() => self.between.push(byte),
            Stage::Item | Stage::Value | Stage::Sign if !self.open.is_empty() => out.push(byte),
            _ => {}
        }
    }

    fn item(&mut self, byte: u8, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        let bracket = *self.open.last().expect("items stand in brackets");
        if byte == bracket.close {
            self.between.clear();
            return self.close(bracket, input, out);
        }
        out.append(&mut self.between);
        if bracket.sign.is_none() {
            self.stage = Stage::Value;
            return Flow::Go;
        }
        self.begin(byte, true, input, out)
    }

    fn sign(&mut self, byte: u8, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        let sign = self.open.last().and_then(|bracket| bracket.sign);
        if Some(byte) != sign {
            return Flow::Fail("missing value after a key");
        }
        input.advance(1);
        out.push(b':');
        self.stage = Stage::Value;
        Flow::Go
    }

    fn value(&mut self, byte: u8, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        let bracket = match byte {
            b'{' => Bracket { close: b'}', sign: Some(b':') },
            b'[' => Bracket { close: b']', sign: None },
            b'(' => Bracket { close: b')', sign: None },
            _ => return self.begin(byte, false, input, out),
        };
        if self.open.len() == DEEPEST {
            return Flow::Fail("arguments nested too deeply");
        }
        input.advance(1);
        out.push(if bracket.sign.is_some() { b'{' } else { b'[' });
        self.open.push(bracket);
        self.stage = Stage::Item;
        Flow::Go
    }

    /// Begins a text or a word.
    fn begin(&mut self, byte: u8, is_key: bool, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        if let Some(pattern) = &self.quote {
            match input.sees(pattern) {
                Seen::Maybe => return Flow::Wait,
                Seen::Yes => {
                    input.advance(pattern.len());
                    out.push(b'"');
                    let escape = EscapeReader::default();
                    self.stage = Stage::Text { quote: Quote::Pattern, is_key, escape };
                    return Flow::Go;
                }
                Seen::No => {}
            }
        }
        match byte {
            b'"' | b'\'' => {
                input.advance(1);
                out.push(b'"');
                let (quote, escape) = (Quote::Mark(byte), EscapeReader::default());
                self.stage = Stage::Text { quote, is_key, escape };
            }
            _ if is_word(byte) => self.stage = Stage::Word { text: Vec::new(), is_key },
            _ => return Flow::Fail("invalid value in the arguments"),
        }
        Flow::Go
    }

    fn text(&mut self, byte: u8, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        let Stage::Text { quote, is_key, escape } = &mut self.stage else { return Flow::Go };
        let is_key = *is_key;
        let end = match quote {
            Quote::Mark(mark) => (byte == *mark && !escape.is_open()).then_some(1),
            Quote::Pattern => match self.quote.as_ref().map(|pattern| (input.sees(pattern), pattern.len())) {
                Some((Seen::Maybe, _)) => return Flow::Wait,
                Some((Seen::Yes, length)) => Some(length),
                _ => None,
            },
        };
        if let Some(length) = end {
            input.advance(length);
            out.push(b'"');
            self.stage = if is_key { Stage::Sign } else { self.value_ended() };
        } else if byte == SPECIAL {
            input.advance(SPECIAL_BYTES);
        } else if *quote == Quote::Pattern {
            input.advance(1);
            EscapeReader::plain(byte, out);
        } else {
            match escape.push(byte, out) {
                Escaped::Taken => input.advance(1),
                Escaped::Again => {}
            }
        }
        Flow::Go
    }

    fn word(&mut self, byte: u8, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        let Stage::Word { text, is_key } = &mut self.stage else { return Flow::Go };
        if is_word(byte) {
            text.push(byte);
            input.advance(1);
            return if text.len() > LONGEST_WORD { self.refuse_word(input) } else { Flow::Go };
        }
        if *is_key {
            let key = serde_json::to_vec(&String::from_utf8_lossy(text)).unwrap_or_default();
            out.extend(key);
            self.stage = Stage::Sign;
            return Flow::Go;
        }
        self.end_word(input, out)
    }

    fn end_word(&mut self, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        let Stage::Word { text, .. } = &self.stage else { return Flow::Go };
        let Some(value) = self.word_value(text) else { return self.refuse_word(input) };
        out.extend_from_slice(value.as_bytes());
        self.stage = self.value_ended();
        Flow::Go
    }

    /// Returns the JSON of a word, if it is a value.
    fn word_value(&self, text: &[u8]) -> Option<String> {
        let word = String::from_utf8_lossy(text);
        match &*word {
            "true" | "True" => Some("true".to_owned()),
            "false" | "False" => Some("false".to_owned()),
            "null" | "None" => Some("null".to_owned()),
            word => {
                number(word).or_else(|| self.quote.as_ref().and_then(|_| serde_json::to_string(word).ok()))
            }
        }
    }

    /// Puts back a word that is not a value, so that it stays in the text.
    fn refuse_word(&self, input: &mut Input) -> Flow {
        if let Stage::Word { text, .. } = &self.stage {
            input.put_back(text.len());
        }
        Flow::Fail("invalid value in the arguments")
    }

    fn after(&mut self, byte: u8, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        let bracket = *self.open.last().expect("only values in brackets have something after them");
        if byte == bracket.close {
            return self.close(bracket, input, out);
        }
        if byte != b',' {
            return Flow::Fail("missing comma or bracket in the arguments");
        }
        input.advance(1);
        self.between = vec![b','];
        self.stage = Stage::Item;
        Flow::Go
    }

    fn close(&mut self, bracket: Bracket, input: &mut Input, out: &mut Vec<u8>) -> Flow {
        input.advance(1);
        self.open.pop();
        out.push(if bracket.sign.is_some() { b'}' } else { b']' });
        self.stage = self.value_ended();
        Flow::Go
    }

    fn value_ended(&self) -> Stage {
        if self.open.is_empty() { Stage::Done } else { Stage::After }
    }
}

fn is_word(byte: u8) -> bool {
    byte > b' ' && byte != SPECIAL && !b",:=(){}[]\"'".contains(&byte)
}

/// Converts a number to JSON.
fn number(word: &str) -> Option<String> {
    // Numbers may have any size: a JSON grammar also allows numbers that no float can hold.
    let is_json = |text: &str| {
        text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
            && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
    };
    if is_json(word) {
        return Some(word.to_owned());
    }
    let plain = word.replace('_', "");
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", plain.strip_prefix('+').unwrap_or(&plain)),
    };
    if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    let hexadecimal = digits.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let digits = if let Some(number) = hexadecimal {
        number.to_string()
    } else {
        let number: f64 = digits.parse().ok()?;
        if number.fract() == 0.0 && number < 1e15 { format!("{number:.1}") } else { number.to_string() }
    };
    Some(format!("{sign}{digits}")).filter(|text| is_json(text))
}
