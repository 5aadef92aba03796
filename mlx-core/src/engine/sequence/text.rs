//! The text of a sequence: follows the token history, decodes the text that is certain, and looks for stop strings.

use chat_format::text::{Detokenizer, StopMatcher};

use crate::sampling::{Cursor, Since, TokenHistory};

/// Turns accepted tokens into text. It follows the history; a rollback by k tokens costs O(k).
pub(in crate::engine) struct OutputText {
    cursor: Cursor,
    now: Decoded,
    /// In ascending order of tokens; see [`OutputText::save`].
    checkpoints: Vec<Decoded>,
    /// The maximum bytes of text and of shown text that were emitted so far. Text that is decoded again after a rollback is not emitted
    /// again.
    emitted: (usize, usize),
}

/// The state of the decoders after some generated tokens.
#[derive(Clone)]
struct Decoded {
    detokenizer: Detokenizer,
    stop: StopMatcher,
    tokens: usize,
    /// Bytes of text and of shown text that these tokens produced.
    made: (usize, usize),
}

/// The minimum number of tokens between two checkpoints.
const SPACING: usize = 16;

/// The text that the newest tokens added.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Piece {
    /// Text that is certain.
    pub(in crate::engine) text: String,
    /// Text that can be shown: certain, and not part of a stop string.
    pub(in crate::engine) delta: String,
    /// The index of the stop string that was found.
    pub(in crate::engine) matched: Option<usize>,
}

impl OutputText {
    /// Follows `history` from its end, since the prompt is not part of the text.
    pub(in crate::engine) fn new(
        detokenizer: Detokenizer,
        stop: StopMatcher,
        history: &TokenHistory,
    ) -> Self {
        let mut cursor = Cursor::default();
        history.since(&mut cursor);
        let now = Decoded { detokenizer, stop, tokens: 0, made: (0, 0) };
        Self { cursor, checkpoints: vec![now.clone()], now, emitted: (0, 0) }
    }

    /// Decodes the tokens that were added to the history. After a rollback, decoding resumes at a checkpoint, and only text beyond the
    /// emitted text is returned.
    pub(in crate::engine) fn sync(&mut self, history: &TokenHistory) -> Piece {
        let tokens = match history.since(&mut self.cursor) {
            Since::Append(tokens) => tokens,
            Since::Truncated { to, .. } => {
                self.restore(to.saturating_sub(history.prompt_length()));
                &history.generated()[self.now.tokens..]
            }
        };
        let (before, emitted) = (self.now.made, self.emitted);
        let Piece { text, delta, matched } = self.push(tokens);
        self.emitted = (emitted.0.max(self.now.made.0), emitted.1.max(self.now.made.1));
        let text = beyond(&text, emitted.0.saturating_sub(before.0));
        let delta = beyond(&delta, emitted.1.saturating_sub(before.1));
        Piece { text, delta, matched }
    }

    /// Returns the remaining text at the end of a generation.
    pub(in crate::engine) fn finish(&mut self) -> Piece {
        let text = self.now.detokenizer.finish();
        let mut piece = Piece::default();
        self.now.watch(&text, &mut piece);
        if piece.matched.is_none() {
            piece.delta.push_str(&self.now.stop.finish());
        }
        piece
    }

    fn push(&mut self, tokens: &[u32]) -> Piece {
        let mut piece = Piece::default();
        for &token in tokens {
            let text = self.now.detokenizer.push(token);
            self.now.watch(&text, &mut piece);
            self.now.tokens += 1;
            if self.now.tokens.is_multiple_of(SPACING) {
                self.save();
            }
        }
        if piece.matched.is_none() {
            self.now.look_ahead(&mut piece);
        }
        piece
    }

    /// Saves a checkpoint. Of the checkpoints at multiples of 16, 32, 64 and so on, the last two of each kind are retained. So there are
    /// few, and a rollback by k tokens finds one at most 2 k + 16 tokens before its end.
    fn save(&mut self) {
        let now = self.now.tokens;
        // Zero, the start of the text, is a multiple of everything.
        let kind = |tokens: usize| 1 << tokens.trailing_zeros().min(usize::BITS - 2);
        self.checkpoints.retain(|it| now - it.tokens <= 2 * kind(it.tokens));
        self.checkpoints.push(self.now.clone());
    }

    /// Restores the last checkpoint with at most `tokens` tokens.
    fn restore(&mut self, tokens: usize) {
        let kept = self.checkpoints.partition_point(|it| it.tokens <= tokens);
        self.checkpoints.truncate(kept);
        self.now = self.checkpoints.last().expect("the checkpoint of no tokens is never dropped").clone();
    }
}

impl Decoded {
    /// Adds text and looks for stop strings in it.
    fn watch(&mut self, text: &str, piece: &mut Piece) {
        let output = self.stop.push(text);
        self.made = (self.made.0 + text.len(), self.made.1 + output.emit.len());
        piece.text.push_str(text);
        piece.delta.push_str(&output.emit);
        piece.matched = output.matched;
    }

    /// Ends the text if a stop string would match its uncertain end. Some text, such as a newline that is a byte token, is certain only
    /// after the next token.
    fn look_ahead(&self, piece: &mut Piece) {
        if self.stop.is_empty() {
            return;
        }
        let tail = self.detokenizer.clone().finish();
        // An incomplete character may still become complete.
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

fn beyond(text: &str, emitted: usize) -> String {
    text.get(emitted..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use chat_format::text::Tokenizer;

    use super::*;

    fn tokenizer(name: &str) -> Tokenizer {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models");
        Tokenizer::load(&models.join(name)).expect("the fixture loads")
    }

    fn follower(tokenizer: &Tokenizer, stop: &[&str], history: &TokenHistory) -> OutputText {
        let stop: Vec<String> = stop.iter().map(|&text| text.to_owned()).collect();
        OutputText::new(tokenizer.detokenizer(true), StopMatcher::new(&stop), history)
    }

    #[test]
    fn after_a_rollback_only_new_text_is_emitted() {
        let tokenizer = tokenizer("llama-f32");
        let tokens = tokenizer.encode("The keeper counts the waves", false).expect("it encodes");
        let mut history = TokenHistory::new(vec![1, 2]);
        let mut follower = follower(&tokenizer, &["waves"], &history);
        let mut emitted = String::new();
        for (place, &token) in tokens.iter().enumerate() {
            if place % 4 == 3 {
                history.push(7);
                history.truncate(history.len() - 1);
            }
            if place % 5 == 4 {
                // Removes several tokens, then adds them again one by one.
                history.truncate(history.len() - 3);
                for &token in &tokens[place - 3..place] {
                    history.push(token);
                    assert_eq!(follower.sync(&history), Piece::default());
                }
            }
            history.push(token);
            let piece = follower.sync(&history);
            emitted.push_str(&piece.text);
            assert_eq!(piece.matched.is_some(), place + 1 == tokens.len());
        }
        assert_eq!(emitted, tokenizer.decode(&tokens, true));
    }

    /// In this vocabulary a newline is a byte token, so its text is certain only after the next token.
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

    /// Measures work by the number of tokens that are decoded again.
    #[test]
    fn a_rollback_decodes_no_more_than_a_few_times_what_it_removed() {
        let tokenizer = tokenizer("llama-f32");
        let mut history = TokenHistory::new(vec![1, 2]);
        let mut follower = follower(&tokenizer, &["never"], &history);
        (0..20_000).for_each(|token| history.push(token % 300));
        let mut text = follower.sync(&history).text;
        assert!(follower.checkpoints.len() <= 32, "{} checkpoints", follower.checkpoints.len());
        for back in [1, 3, 40, 1_000, 9, 15_000, 2] {
            let length = history.len() - back;
            history.truncate(length);
            let decoded = length - history.prompt_length();
            assert_eq!(follower.sync(&history), Piece::default());
            assert_eq!(follower.now.tokens, decoded);
            let from = follower.checkpoints.last().expect("there is one").tokens;
            assert!(decoded - from <= 2 * back + SPACING, "{back} back: from {from} to {decoded}");
        }
        while follower.now.tokens < 20_100 {
            history.push(follower.now.tokens as u32 % 300);
            text.push_str(&follower.sync(&history).text);
        }
        assert_eq!(text + &follower.finish().text, tokenizer.decode(history.generated(), true));
    }
}
