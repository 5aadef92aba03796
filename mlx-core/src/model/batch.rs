//! What one forward pass runs: tokens of one or more sequences, and where they stand.

use mlx_rs::Array;

use super::rope::Positions;
use crate::array::from_tokens;

/// How the rows of a batch belong to sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All rows are consecutive positions of one sequence.
    OneRun,
    /// Every row is one position of a sequence of its own.
    Rows,
}

/// One forward pass. Row `i` of a decode step belongs to cache `i`; a run belongs to cache 0.
pub struct Batch {
    tokens: Array,
    rows: usize,
    layout: Layout,
    positions: Positions,
}

impl Batch {
    /// `tokens` as consecutive positions of one sequence, from `start`. Must not be empty.
    pub fn run(tokens: &[u32], start: usize) -> Self {
        Self {
            tokens: from_tokens(tokens),
            rows: tokens.len(),
            layout: Layout::OneRun,
            positions: Positions::From(start as i32),
        }
    }

    /// A decode step: one `(token, position)` of each of several sequences. Must not be empty.
    pub fn step(rows: &[(u32, usize)]) -> Self {
        let tokens: Vec<u32> = rows.iter().map(|row| row.0).collect();
        let positions: Vec<i32> = rows.iter().map(|row| row.1 as i32).collect();
        Self {
            tokens: from_tokens(&tokens),
            rows: rows.len(),
            layout: Layout::Rows,
            positions: Positions::Each(Array::from_slice(&positions, &[rows.len() as i32])),
        }
    }

    /// `[R]`
    pub(crate) fn tokens(&self) -> &Array {
        &self.tokens
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn positions(&self) -> &Positions {
        &self.positions
    }
}
