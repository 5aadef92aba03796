//! What one forward pass runs: tokens of one or more sequences, where they stand, and how far the pass has come.

use mlx_rs::Array;
use mlx_rs::transforms::async_eval;

use super::rope::{Beyond, Positions, RotaryTables};
use super::rope_config::LONG;
use crate::array::from_tokens;
use crate::cache::SequenceState;
use crate::error::Result;

/// How the rows of a batch belong to sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All rows are consecutive positions of the sequence of cache 0.
    OneRun,
    /// Row `i` belongs to the cache with this index; rows beyond the list are padding.
    Rows(Vec<usize>),
}

/// One row of a decode step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Which of the pass's caches the row belongs to. Rows of one cache are consecutive positions, in order.
    pub cache: usize,
    /// The token.
    pub token: u32,
    /// Its position.
    pub position: usize,
}

/// The rows of one forward pass.
pub struct Batch {
    tokens: Array,
    rows: usize,
    layout: Layout,
    positions: Positions,
    beyond: Beyond,
}

impl Batch {
    /// `tokens` as consecutive positions of one sequence, from `start`. Must not be empty.
    pub fn run(tokens: &[u32], start: usize) -> Self {
        Self {
            tokens: from_tokens(tokens),
            rows: tokens.len(),
            layout: Layout::OneRun,
            positions: Positions::Run(start as i32..(start + tokens.len()) as i32),
            beyond: Beyond::None,
        }
    }

    /// A decode step: rows that cannot see each other but through their own caches, filled up to `width` with padding that no
    /// cache sees. Must not be empty.
    pub fn step(rows: &[Row], width: usize) -> Self {
        let width = width.max(rows.len());
        let mut tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let mut positions: Vec<i32> = rows.iter().map(|row| row.position as i32).collect();
        tokens.resize(width, 0);
        positions.resize(width, 0);
        Self {
            tokens: from_tokens(&tokens),
            rows: width,
            layout: Layout::Rows(rows.iter().map(|row| row.cache).collect()),
            positions: Positions::Each(Array::from_slice(&positions, &[width as i32])),
            beyond: Beyond::None,
        }
    }

    /// `[R]`
    pub(crate) fn tokens(&self) -> &Array {
        &self.tokens
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn positions(&self) -> &Positions {
        &self.positions
    }

    /// Which rows belong to sequences of the long variant.
    pub(crate) fn beyond(&self) -> &Beyond {
        &self.beyond
    }

    /// Notes which of the pass's `states` are of the long variant.
    pub(super) fn note_variants(&mut self, states: &[&mut SequenceState]) {
        let is_long = |state: &SequenceState| state.variant() == LONG;
        self.beyond = match &self.layout {
            Layout::OneRun if is_long(states[0]) => Beyond::All,
            Layout::Rows(of_rows) if of_rows.iter().any(|&cache| is_long(states[cache])) => {
                let is_beyond = |row| of_rows.get(row).is_some_and(|&cache: &usize| is_long(states[cache]));
                let rows: Vec<bool> = (0..self.rows).map(is_beyond).collect();
                Beyond::Some(Array::from_slice(&rows, &[rows.len() as i32, 1, 1, 1]))
            }
            _ => Beyond::None,
        };
    }
}

/// A forward pass that can stop after any layer, so that a long prompt does not hold up the rows of others.
pub struct Pass {
    pub(super) batch: Batch,
    /// What queries and keys of this pass turn by; empty before the first layer.
    pub(super) rotary: Vec<RotaryTables>,
    /// `[R, width]` after `layer` layers.
    pub(super) hidden: Array,
    pub(super) layer: usize,
}

impl Pass {
    /// How many layers have been issued.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// The rows' hidden state `[R, width]` after those layers.
    pub fn hidden(&self) -> &Array {
        &self.hidden
    }

    /// Lets the device begin with what has been issued and returns at once.
    pub fn start(&self) -> Result<()> {
        Ok(async_eval([&self.hidden])?)
    }

    /// Waits for what has been issued.
    pub fn wait(&self) -> Result<()> {
        Ok(self.hidden.eval()?)
    }
}
