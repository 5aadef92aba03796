//! The text of a sequence: follows the token history, decodes what is certain, and watches for stop strings.

use crate::sampling::{Cursor, Since, TokenHistory};
use crate::text::{Detokenizer, StopMatcher};

/// Turns accepted tokens into text, as one more follower of the history.
pub(super) struct OutputText {
    cursor: Cursor,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    /// Bytes of text and of shown text that the tokens so far have made.
    made: (usize, usize),
    /// The most that these ever were: what is made again after a rollback is not said again.
    said: (usize, usize),
}

/// What the newest tokens brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// Text that is certain.
    pub(super) text: String,
    /// Text that may be shown: certain, and not part of a stop string.
    pub(super) delta: String,
    /// The stop string that came, by its index.
    pub(super) matched: Option<usize>,
}

impl OutputText {
    /// Follows `history` from its end: the prompt is not part of the text.
    pub(super) fn new(detokenizer: Detokenizer, stop: StopMatcher, history: &TokenHistory) -> Self {
        let mut cursor = Cursor::default();
        history.since(&mut cursor);
        Self { cursor, detokenizer, stop, made: (0, 0), said: (0, 0) }
    }

    /// Takes what the history has gained. After a rollback the text is built anew, and what goes beyond the text that
    /// was said before is the piece.
    pub(super) fn sync(&mut self, history: &TokenHistory) -> Piece {
        let tokens = match history.since(&mut self.cursor) {
            Since::Append(tokens) => tokens,
            Since::Rebuild(_) => {
                self.detokenizer.reset();
                self.stop.reset();
                self.made = (0, 0);
                history.generated()
            }
        };
        let (before, said) = (self.made, self.said);
        let Piece { text, delta, matched } = self.push(tokens);
        self.said = (said.0.max(self.made.0), said.1.max(self.made.1));
        let text = beyond(&text, said.0.saturating_sub(before.0));
        let delta = beyond(&delta, said.1.saturating_sub(before.1));
        Piece { text, delta, matched }
    }

    /// The rest of the text, at the end of a generation.
    pub(super) fn finish(&mut self) -> Piece {
        let text = self.detokenizer.finish();
        let mut piece = self.watch(text);
        if piece.matched.is_none() {
            piece.delta.push_str(&self.stop.finish());
        }
        piece
    }

    fn push(&mut self, tokens: &[u32]) -> Piece {
        let mut text = String::new();
        for &token in tokens {
            text.push_str(&self.detokenizer.push(token));
        }
        let mut piece = self.watch(text);
        if piece.matched.is_none() {
            self.look_ahead(&mut piece);
        }
        self.made = (self.made.0 + piece.text.len(), self.made.1 + piece.delta.len());
        piece
    }

    fn watch(&mut self, text: String) -> Piece {
        let output = self.stop.push(&text);
        Piece { text, delta: output.emit, matched: output.matched }
    }

    /// Some text is certain only once the next token is known, such as a newline that is a byte token. If the
    /// text would hold a stop string were it to end here, then it ends here.
    fn look_ahead(&mut self, piece: &mut Piece) {
        if self.stop.is_empty() {
            return;
        }
        let tail = self.detokenizer.clone().finish();
        // Half a character may still become a whole one.
        if tail.is_empty() || tail.contains(char::REPLACEMENT_CHARACTER) {
            return;
        }
        let output = self.stop.clone().push(&tail);
        if output.matched.is_some() {
            piece.text.push_str(&tail);
            piece.delta.push_str(&output.emit);
            piece.matched = output.matched;
        }
    }
}

fn beyond(text: &str, said: usize) -> String {
    text.get(said..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::text::Tokenizer;

    fn tokenizer(name: &str) -> Tokenizer {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models");
        Tokenizer::load(&models.join(name)).expect("the fixture loads")
    }

    fn follower(tokenizer: &Tokenizer, stop: &[&str], history: &TokenHistory) -> OutputText {
        let stop: Vec<String> = stop.iter().map(|&text| text.to_owned()).collect();
        OutputText::new(tokenizer.detokenizer(true), StopMatcher::new(&stop), history)
    }

    #[test]
    fn after_a_rollback_only_new_text_is_said() {
        let tokenizer = tokenizer("llama-f32");
        let tokens = tokenizer.encode("The keeper counts the waves", false).expect("it encodes");
        let mut history = TokenHistory::new(vec![1, 2]);
        let mut follower = follower(&tokenizer, &["waves"], &history);
        let mut said = String::new();
        for (place, &token) in tokens.iter().enumerate() {
            if place % 4 == 3 {
                history.push(7);
                history.truncate(history.len() - 1);
            }
            if place % 5 == 4 {
                // Several tokens back, and forth again one by one.
                history.truncate(history.len() - 3);
                for &token in &tokens[place - 3..place] {
                    history.push(token);
                    assert_eq!(follower.sync(&history), Piece::default());
                }
            }
            history.push(token);
            let piece = follower.sync(&history);
            said.push_str(&piece.text);
            assert_eq!(piece.matched.is_some(), place + 1 == tokens.len());
        }
        assert_eq!(said, tokenizer.decode(&tokens, true));
    }

    /// In this vocabulary a newline is a byte token, whose text is certain only after the next token.
    #[test]
    fn a_stop_string_of_uncertain_text_stops_at_once() {
        let tokenizer = tokenizer("llama-spm-f32");
        let newline = tokenizer.id("<0x0A>").expect("a byte token");
        let mut history = TokenHistory::new(vec![1]);
        let mut follower = follower(&tokenizer, &["\n"], &history);
        history.push(newline);
        let piece = follower.sync(&history);
        assert_eq!((piece.matched, piece.delta.as_str()), (Some(0), ""));
    }
}
