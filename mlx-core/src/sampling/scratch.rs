//! The buffers of a draw.

use super::constraint::TokenMask;
use super::filters::Candidates;
use super::scan::Scan;

/// Buffers shared by all draws, so that a step makes no allocations with the size of the vocabulary.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The scan of the model's row.
    pub(super) raw: Scan,
    /// The scan of the edited row.
    pub(super) edited: Scan,
    pub(super) row: Vec<f32>,
    pub(super) mask: TokenMask,
    pub(super) choice: Choice,
    /// The buffers of other threads.
    pub(super) others: Vec<Scratch>,
}

/// Buffers of the filters and the final choice.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) pool: Candidates,
    pub(super) weights: Vec<f32>,
    pub(super) blocks: Vec<f64>,
}
