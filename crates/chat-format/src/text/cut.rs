//! Texts and pairs of texts within a number of tokens, cut as transformers cuts them: special tokens stay.

use super::encoded::EncodeLimit;
use super::pair_frame::PairFrame;
use super::pause::Pause;
use super::tokenizer::Tokenizer;
use super::truncation_side::TruncationSide;
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
    /// True if tokens of the text, or of the second text of a pair, were cut.
    pub truncated: bool,
    /// True if tokens of the first text of a pair were cut.
    pub first_truncated: bool,
}

impl Tokenizer {
    /// Encodes a text with special tokens, in at most `max_tokens` tokens. A longer text is cut on `side`, by default that of the tokenizer.
    pub fn encode_truncated(
        &self,
        text: &str,
        max_tokens: usize,
        side: Option<TruncationSide>,
        pause: Pause,
    ) -> Result<EncodedText> {
        let side = side.unwrap_or(self.truncation_side());
        let mut ids = self.encode_enough(text, true, max_tokens, side, pause)?;
        let truncated = ids.len() > max_tokens;
        if truncated {
            ids = truncate(ids, &self.encode("", true)?, max_tokens, side);
        }
        Ok(EncodedText { ids, second: None, truncated, first_truncated: false })
    }

    /// Encodes a pair of texts with special tokens, in at most `max_tokens` tokens. The longer text is cut first, then both, on `side`.
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        max_tokens: usize,
        side: Option<TruncationSide>,
        pause: Pause,
    ) -> Result<EncodedText> {
        let side = side.unwrap_or(self.truncation_side());
        let PairFrame { before, between, after, between_of_type_1 } = self.pair_frame()?;
        let room = max_tokens.saturating_sub(before.len() + between.len() + after.len());
        let mut one = self.encode_enough(first, false, room, side, pause)?;
        let mut other = self.encode_enough(second, false, room, side, pause)?;
        let lengths = [one.len(), other.len()];
        if one.len() + other.len() > room {
            let [first, second] = shares(one.len(), other.len(), room);
            side.cut(&mut one, first);
            side.cut(&mut other, second);
        }
        let start = before.len() + one.len() + between.len();
        let ids = [before, &one, between, &other, after].map(Vec::as_slice).concat();
        Ok(EncodedText {
            ids,
            second: between_of_type_1.map(|count| start - count),
            truncated: other.len() < lengths[1],
            first_truncated: one.len() < lengths[0],
        })
    }

    /// Encodes a text, or enough of its start for more than `max_tokens` tokens if its end is cut.
    fn encode_enough(
        &self,
        text: &str,
        framed: bool,
        max_tokens: usize,
        side: TruncationSide,
        pause: Pause,
    ) -> Result<Vec<u32>> {
        match side {
            TruncationSide::Left => {
                let limit = EncodeLimit { tokens: usize::MAX, pause };
                self.encode_within(text, framed, &limit)?.whole()
            }
            TruncationSide::Right => self.encode_start(text, framed, max_tokens, pause),
        }
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

/// Cuts ids to `max_tokens` on a side, keeping the special tokens on both sides. `frame` is the encoding of an empty text.
fn truncate(mut ids: Vec<u32>, frame: &[u32], max_tokens: usize, side: TruncationSide) -> Vec<u32> {
    let before = ids.iter().zip(frame).take_while(|(id, frame)| id == frame).count();
    let after = &frame[before..];
    if !ids.ends_with(after) || frame.len() > max_tokens {
        ids.truncate(max_tokens);
        return ids;
    }
    let mut text = ids[before..ids.len() - after.len()].to_vec();
    side.cut(&mut text, max_tokens - frame.len());
    [&frame[..before], &text, after].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_its_special_tokens() {
        let cut =
            |ids: &[u32], frame: &[u32], max_tokens, side| truncate(ids.to_vec(), frame, max_tokens, side);
        let right =
            |ids: &[u32], frame: &[u32], max_tokens| cut(ids, frame, max_tokens, TruncationSide::Right);
        assert_eq!(right(&[1, 5, 6, 7, 2], &[1, 2], 4), [1, 5, 6, 2]);
        assert_eq!(right(&[1, 5, 6, 7], &[1], 3), [1, 5, 6]);
        assert_eq!(right(&[5, 6, 7], &[], 2), [5, 6]);
        assert_eq!(right(&[1, 5, 2], &[1, 2], 1), [1]);
        assert_eq!(cut(&[1, 5, 6, 7, 2], &[1, 2], 4, TruncationSide::Left), [1, 6, 7, 2]);
        assert_eq!(cut(&[5, 6, 7], &[], 2, TruncationSide::Left), [6, 7]);
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
