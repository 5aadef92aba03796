//! Follows the tokens of an answer through its thoughts, so that a budget can end them. Invariant: a token counts if the parser of the answer
//! takes it for a part of a thought, markers excluded.

use super::format::{Kind, OutputFormat, Pattern, Piece, SPECIAL, pieces_of, special_bytes};
use super::parser::OutputParser;
use super::{CallFormat, Tools};
use crate::error::{Error, Result};
use crate::text::{Detokenizer, Tokenizer};

/// The maximum number of bytes of a character.
const LONGEST_CHARACTER: usize = 4;

/// A byte that no text has.
const NO_TEXT: u8 = 0xfe;

/// The thoughts of an answer so far.
#[derive(Debug, Clone)]
pub struct ThoughtTracker {
    parser: OutputParser,
    detokenizer: Detokenizer,
    tokenizer: Tokenizer,
    /// Closes a thought.
    close: Pattern,
    /// The end of the open thought, which may be the beginning of the closing marker.
    tail: Vec<u8>,
    tokens: usize,
}

impl ThoughtTracker {
    /// Returns a tracker of the answer to a prompt with this end. `is_continued` is true if the prompt contains the beginning of the answer.
    /// `None` if the format has no thoughts.
    ///
    /// # Errors
    /// If the vocabulary cannot write the marker that closes a thought.
    pub fn new(
        format: &OutputFormat,
        tokenizer: &Tokenizer,
        prompt_end: &str,
        is_continued: bool,
    ) -> Result<Option<Self>> {
        let Some(close) = format.thought_end() else { return Ok(None) };
        let parser = OutputParser::new(format, prompt_end);
        let parser = if is_continued { parser.continuing() } else { parser };
        // On channels, a message to a tool is not a thought.
        let calls = format.calls_on_channels().and_then(CallFormat::named);
        let parser = match calls {
            Some(calls) => parser.with_calls(&calls, Tools::default(), prompt_end),
            None => parser,
        };
        let tracker = Self {
            parser,
            detokenizer: tokenizer.detokenizer(true),
            tokenizer: tokenizer.clone(),
            close: close.clone(),
            tail: Vec::new(),
            tokens: 0,
        };
        if tracker.encoded(&tracker.closing()) != **close {
            let message =
                "cannot be enforced: the model's tokens cannot write the marker that closes a thought";
            return Err(Error::request("think_budget", message));
        }
        Ok(Some(tracker))
    }

    /// Follows the next token of the answer.
    pub fn push(&mut self, token: u32) {
        let was_open = self.is_open();
        let text = self.detokenizer.push(token);
        // The events are of no interest.
        self.parser.push(token, &text, &text);
        if was_open && self.is_open() {
            self.tokens += 1;
            self.tail.extend(self.encoded(&[token]));
            let surplus = self.tail.len().saturating_sub(self.close.len());
            self.tail.drain(..surplus);
        } else {
            self.tail.clear();
        }
    }

    /// Returns true within a thought.
    pub fn is_open(&self) -> bool {
        self.parser.is_in_thought()
    }

    /// Returns the number of tokens in the thoughts so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the tokens that close the open thought: the marker, without the part of it that the thought ends with.
    pub fn closing(&self) -> Vec<u32> {
        let is_written = |&length: &usize| self.tail.ends_with(&self.close[..length]);
        let written = (0..self.close.len()).rev().find(is_written).unwrap_or(0);
        let pieces = pieces_of(&self.close[written..]);
        let tokens = |piece| match piece {
            Piece::Special(token) => vec![token],
            Piece::Text(text) => {
                self.own_token(&text).unwrap_or_else(|| self.tokenizer.spell(text.as_bytes()))
            }
        };
        pieces.into_iter().flat_map(tokens).collect()
    }

    /// Returns the tokens after which the thought could not end with a whole character within `left` tokens, including the token itself. A
    /// grammar allows the end of a thought only there.
    pub fn unfinishable(&self, left: usize) -> Vec<u32> {
        if left == 0 || left >= LONGEST_CHARACTER {
            return Vec::new();
        }
        let is_unfinished = |bytes: &[u8]| missing(&[&self.tail, bytes].concat()) >= left;
        let broken = self.tokenizer.broken_tokens().iter();
        broken.filter(|(_, bytes)| is_unfinished(bytes)).map(|(token, _)| *token).collect()
    }

    /// Returns the token that is this text, if the vocabulary has one.
    fn own_token(&self, text: &str) -> Option<Vec<u32>> {
        let token = self.tokenizer.id(text)?;
        (self.tokenizer.token_bytes(token) == text.as_bytes()).then(|| vec![token])
    }

    /// Returns the bytes of tokens, with encoded special tokens. A byte of other tokens that would look like one is replaced.
    fn encoded(&self, tokens: &[u32]) -> Vec<u8> {
        let plain = |byte| if byte == SPECIAL { NO_TEXT } else { byte };
        let bytes = |&token: &u32| {
            if self.tokenizer.is_special(token) {
                special_bytes(token).to_vec()
            } else {
                self.tokenizer.token_bytes(token).into_iter().map(plain).collect()
            }
        };
        tokens.iter().flat_map(bytes).collect()
    }
}

/// Returns the number of bytes that the last character lacks.
fn missing(bytes: &[u8]) -> usize {
    let end = bytes.iter().rev().take(LONGEST_CHARACTER);
    let Some((back, first)) = end.enumerate().find(|(_, byte)| **byte & 0xc0 != 0x80) else { return 0 };
    let length = match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => 1,
    };
    usize::saturating_sub(length, back + 1)
}

impl OutputFormat {
    /// Returns the marker that closes a thought.
    fn thought_end(&self) -> Option<&Pattern> {
        match self.kind() {
            Kind::Answer(answer) => answer.thoughts.as_ref().map(|tags| &tags.close.pattern),
            Kind::Channels(channels) => channels.ends.first(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn tokenizer() -> Tokenizer {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
        Tokenizer::load(&models.join("llama-f32")).expect("the fixture loads")
    }

    fn tracker(format: &OutputFormat, prompt_end: &str) -> ThoughtTracker {
        let tracker = ThoughtTracker::new(format, &tokenizer(), prompt_end, false);
        tracker.expect("the marker can be written").expect("the format has thoughts")
    }

    fn push(tracker: &mut ThoughtTracker, text: &str) -> usize {
        let tokens = tokenizer().encode(text, false).expect("it encodes");
        for token in &tokens {
            tracker.push(*token);
        }
        tokens.len()
    }

    fn closing(tracker: &ThoughtTracker) -> String {
        tokenizer().decode(&tracker.closing(), false)
    }

    #[test]
    fn a_thought_in_tags_is_counted_and_closed_from_within_its_marker() {
        let format = OutputFormat::tags(("<think>", None), "", ("</think>", None));
        let mut opened = tracker(&format, "<think>\n");
        let count = push(&mut opened, "Hm, so");
        assert_eq!((opened.is_open(), opened.tokens(), closing(&opened).as_str()), (true, count, "</think>"));
        push(&mut opened, " <</th");
        assert_eq!((opened.is_open(), closing(&opened).as_str()), (true, "ink>"));
        for token in opened.closing() {
            opened.push(token);
        }
        assert!(!opened.is_open());
        let counted = opened.tokens();
        push(&mut opened, "\n\nYes. <think>");
        assert_eq!((opened.is_open(), opened.tokens()), (false, counted));

        let mut answer = tracker(&format, "");
        push(&mut answer, "<think>");
        assert_eq!((answer.is_open(), answer.tokens()), (true, 0));
        let mut continued =
            ThoughtTracker::new(&format, &tokenizer(), "", true).expect("valid").expect("thoughts");
        push(&mut continued, "<think> is a tag");
        assert!(!continued.is_open());
        assert!(
            ThoughtTracker::new(&OutputFormat::plain(), &tokenizer(), "", false).expect("valid").is_none()
        );
    }

    #[test]
    fn special_tokens_open_a_thought_anywhere() {
        let format = OutputFormat::tags(("<think>", Some(3)), "", ("</think>", Some(4)));
        let mut tracker = tracker(&format, "");
        push(&mut tracker, "Well");
        tracker.push(3);
        let count = push(&mut tracker, "Hm");
        assert_eq!((tracker.is_open(), tracker.tokens(), tracker.closing()), (true, count, vec![4]));
        for token in [4, 3] {
            tracker.push(token);
        }
        assert_eq!((tracker.is_open(), tracker.tokens()), (true, count));
    }

    /// The byte 0xff begins encoded special tokens, and byte-level vocabularies have a token for it.
    #[test]
    fn a_byte_that_is_no_text_is_no_part_of_a_marker() {
        let format = OutputFormat::tags(("<think>", Some(3)), "", ("</think>", Some(4)));
        let mut tracker = tracker(&format, "<think>");
        let byte = |byte: u8| (0..320).find(|id| tokenizer().token_bytes(*id) == [byte]).expect("a token");
        tracker.push(byte(0xff));
        assert_eq!((tracker.tokens(), tracker.closing()), (1, vec![4]));
        tracker.push(byte(special_bytes(4)[1]));
        assert_eq!((tracker.tokens(), tracker.closing()), (2, vec![4]));
    }

    #[test]
    fn a_character_that_cannot_be_finished_in_time_is_not_begun() {
        assert_eq!(["a", "é"].map(|text| missing(text.as_bytes())), [0, 0]);
        let wave = "🌊".as_bytes();
        assert_eq!([1, 2, 3, 4].map(|length| missing(&wave[..length])), [3, 2, 1, 0]);
        let format = OutputFormat::tags(("<think>", Some(3)), "", ("</think>", Some(4)));
        let mut tracker = tracker(&format, "<think>");
        let byte = |byte: u8| (0..320).find(|id| tokenizer().token_bytes(*id) == [byte]).expect("a token");
        let may_follow =
            |tracker: &ThoughtTracker, next: u8, left| !tracker.unfinishable(left).contains(&byte(next));
        assert_eq!([4, 3, 2].map(|left| may_follow(&tracker, wave[0], left)), [true, false, false]);
        assert!(may_follow(&tracker, b'a', 1));
        tracker.push(byte(wave[0]));
        tracker.push(byte(wave[1]));
        assert_eq!([2, 1].map(|left| may_follow(&tracker, wave[2], left)), [true, false]);
    }

    #[test]
    fn messages_to_tools_are_no_thoughts() {
        let [start, channel, message, end] = [0, 1, 2, 4];
        let mut tracker =
            tracker(&OutputFormat::channels([start, channel, message, end]), "<|start|>assistant");
        tracker.push(channel);
        push(&mut tracker, "analysis");
        assert!(!tracker.is_open(), "a header");
        tracker.push(message);
        let count = push(&mut tracker, "Hm");
        assert_eq!((tracker.is_open(), tracker.tokens(), tracker.closing()), (true, count, vec![end]));
        tracker.push(end);
        tracker.push(start);
        push(&mut tracker, "assistant to=functions.add");
        tracker.push(channel);
        push(&mut tracker, "analysis");
        tracker.push(message);
        push(&mut tracker, "{}");
        assert_eq!((tracker.is_open(), tracker.tokens()), (false, count));
    }
}
