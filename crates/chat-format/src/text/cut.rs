//! Texts and pairs of texts within a number of tokens, cut as transformers cuts them: special tokens stay.

use super::encoded::EncodeLimit;
use super::pair_frame::PairFrame;
use super::pause::Pause;
use super::tokenizer::Tokenizer;
use crate::error::Result;

/// Tokens beyond a limit that are computed before a text is cut. The last tokens of a part of a text may differ from those of the
/// whole text. A word of WordPiece is one unknown token from 101 letters on, and up to 100 tokens if it is shorter.
const MARGIN: usize = 128;

/// The tokens of a text, or of a pair of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedText {
    /// The tokens, including special tokens.
    pub ids: Vec<u32>,
    /// The index of the first token of type 1; `None` if all tokens have type 0.
    pub second: Option<usize>,
    /// True if tokens were cut.
    pub truncated: bool,
}

impl Tokenizer {
    /// Encodes a text with special tokens, in at most `max_tokens` tokens. A longer text loses its end.
    pub fn encode_truncated(&self, text: &str, max_tokens: usize, pause: Pause) -> Result<EncodedText> {
        let mut ids = self.encode_start(text, true, max_tokens, pause)?;
        let truncated = ids.len() > max_tokens;
        if truncated {
            ids = truncate(ids, &self.encode("", true)?, max_tokens);
        }
        Ok(EncodedText { ids, second: None, truncated })
    }

    /// Encodes a pair of texts with special tokens, in at most `max_tokens` tokens. The longer text loses its end, then both.
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        max_tokens: usize,
        pause: Pause,
    ) -> Result<EncodedText> {
        let PairFrame { before, between, after, between_of_type_1 } = self.pair_frame();
        let room = max_tokens.saturating_sub(before.len() + between.len() + after.len());
        let mut one = self.encode_start(first, false, room, pause)?;
        let mut other = self.encode_start(second, false, room, pause)?;
        let truncated = one.len() + other.len() > room;
        if truncated {
            let [first, second] = shares(one.len(), other.len(), room);
            one.truncate(first);
            other.truncate(second);
        }
        let start = before.len() + one.len() + between.len();
        let ids = [before, &one, between, &other, after].map(Vec::as_slice).concat();
        Ok(EncodedText { ids, second: between_of_type_1.map(|count| start - count), truncated })
    }

    /// Encodes a text, or enough of its start for more than `max_tokens` tokens. These are more than `max_tokens` if and only if those of
    /// the whole text are.
    fn encode_start(&self, text: &str, framed: bool, max_tokens: usize, pause: Pause) -> Result<Vec<u32>> {
        let enough = max_tokens.saturating_add(MARGIN);
        // Few tokens have more than 16 bytes.
        let mut length = text.len().min(enough.saturating_mul(16));
        loop {
            length = text.ceil_char_boundary(length);
            let limit = EncodeLimit { tokens: usize::MAX, pause };
            let ids = self.encode_within(&text[..length], framed, &limit)?.whole()?;
            if length == text.len() || ids.len() > enough {
                return Ok(ids);
            }
            length = text.len().min(2 * length);
        }
    }
}

/// Returns the lengths of two texts within `room` tokens: only the longer one is cut, or both to halves.
fn shares(first: usize, second: usize, room: usize) -> [usize; 2] {
    let (shorter, _) = (first.min(second), first.max(second));
    let mut lengths = [shorter, if shorter > room { shorter } else { shorter.max(room - shorter) }];
    if lengths[0] + lengths[1] > room {
        lengths = [room / 2, room / 2 + room % 2];
    }
    if first > second {
        lengths.reverse();
    }
    lengths
}

/// Cuts ids to `max_tokens`, keeping the special tokens at the end. `frame` is the encoding of an empty text.
fn truncate(mut ids: Vec<u32>, frame: &[u32], max_tokens: usize) -> Vec<u32> {
    let before = ids.iter().zip(frame).take_while(|(id, frame)| id == frame).count();
    let after = &frame[before..];
    if ids.ends_with(after) && after.len() < max_tokens {
        ids.truncate(max_tokens - after.len());
        ids.extend(after);
    } else {
        ids.truncate(max_tokens);
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_text_is_cut_before_its_last_special_tokens() {
        assert_eq!(truncate(vec![1, 5, 6, 7, 2], &[1, 2], 4), [1, 5, 6, 2]);
        assert_eq!(truncate(vec![1, 5, 6, 7], &[1], 3), [1, 5, 6]);
        assert_eq!(truncate(vec![5, 6, 7], &[], 2), [5, 6]);
        assert_eq!(truncate(vec![1, 5, 2], &[1, 2], 1), [1]);
    }

    #[test]
    fn the_longer_text_of_a_pair_is_cut_first() {
        assert_eq!(shares(3, 10, 8), [3, 5]);
        assert_eq!(shares(10, 3, 8), [5, 3]);
        assert_eq!(shares(6, 7, 9), [4, 5]);
        assert_eq!(shares(20, 10, 9), [5, 4]);
        assert_eq!(shares(4, 5, 0), [0, 0]);
    }
}
