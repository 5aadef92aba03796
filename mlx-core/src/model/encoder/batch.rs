//! The texts of a pass, padded to the length of the longest.

use std::iter::repeat_n;

use mlx_rs::Array;

use super::config::PositionTable;
use crate::array::from_tokens;

/// A text of a pass.
#[derive(Debug, Clone, Copy)]
pub struct TextTokens<'a> {
    /// The tokens; at least one.
    pub ids: &'a [u32],
    /// The index of the first token of type 1; `None` if all tokens have type 0.
    pub second: Option<usize>,
}

/// Texts, padded to the length of the longest. Padding repeats token 0; no token of a text sees it.
pub(super) struct Padded<'a> {
    texts: &'a [TextTokens<'a>],
    pub(super) length: usize,
}

impl<'a> Padded<'a> {
    /// Pads at least one text.
    pub(super) fn new(texts: &'a [TextTokens<'a>]) -> Self {
        Self { texts, length: texts.iter().map(|text| text.ids.len()).max().unwrap_or(0) }
    }

    /// Returns the number of texts.
    pub(super) fn count(&self) -> usize {
        self.texts.len()
    }

    /// Returns the number of tokens of each text.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.texts.iter().map(|text| text.ids.len())
    }

    /// Returns true if no text is shorter than the longest.
    pub(super) fn are_even(&self) -> bool {
        self.lengths().all(|length| length == self.length)
    }

    /// Returns the ids, `[texts * length]`.
    pub(super) fn ids(&self) -> Array {
        let ids = self
            .texts
            .iter()
            .flat_map(|text| text.ids.iter().copied().chain(repeat_n(0, self.length - text.ids.len())));
        from_tokens(&ids.collect::<Vec<_>>())
    }

    /// Returns the position of each token in its text, `[texts * length]`.
    pub(super) fn places(&self) -> Array {
        let places: Vec<i32> = self.texts.iter().flat_map(|_| 0..self.length as i32).collect();
        Array::from_slice(&places, &[places.len() as i32])
    }

    /// Returns the row of each token in a table of positions, `[texts * length]`. Where positions count from the padding token, that token
    /// has its own row, also within a text.
    pub(super) fn rows(&self, table: PositionTable) -> Array {
        let padding = table.first.checked_sub(1).map(|id| id as u32);
        let mut rows = Vec::with_capacity(self.texts.len() * self.length);
        for text in self.texts {
            let mut next = table.first as u32;
            for id in text.ids {
                if Some(*id) == padding {
                    rows.push(*id);
                } else {
                    rows.push(next);
                    next += 1;
                }
            }
            rows.extend(repeat_n(0, self.length - text.ids.len()));
        }
        from_tokens(&rows)
    }

    /// Returns the type of each token, `[texts * length]`; `None` if all have type 0.
    pub(super) fn types(&self) -> Option<Array> {
        self.texts.iter().find(|text| text.second.is_some())?;
        let types = self.texts.iter().flat_map(|text| {
            let first = text.second.unwrap_or(self.length).min(self.length);
            repeat_n(0, first).chain(repeat_n(1, self.length - first))
        });
        Some(from_tokens(&types.collect::<Vec<_>>()))
    }
}
