//! The text of a sequence: follows the token history, decodes what is certain, and watches for stop strings.

use crate::sampling::{Cursor, Since, TokenHistory};
use crate::text::{Detokenizer, StopMatcher};

/// Turns accepted tokens into text, as one more follower of the history.
pub(super) struct TextFollower {
    cursor: Cursor,
    detokenizer: Detokenizer,
    stop: StopMatcher,
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

impl TextFollower {
    /// Follows `history` from its end: the prompt is not part of the text.
    pub(super) fn new(detokenizer: Detokenizer, stop: StopMatcher, history: &TokenHistory) -> Self {
        let mut cursor = Cursor::default();
        history.since(&mut cursor);
        Self { cursor, detokenizer, stop }
    }

    /// Takes what the history has gained. After a rollback the text of what is left is built anew, silently:
    /// it has been shown already.
    pub(super) fn sync(&mut self, history: &TokenHistory) -> Piece {
        match history.since(&mut self.cursor) {
            Since::Append(tokens) => self.push(tokens),
            Since::Rebuild(_) => {
                self.detokenizer.reset();
                self.stop.reset();
                self.push(history.generated());
                Piece::default()
            }
        }
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
        self.watch(text)
    }

    fn watch(&mut self, text: String) -> Piece {
        let output = self.stop.push(&text);
        Piece { text, delta: output.emit, matched: output.matched }
    }
}
