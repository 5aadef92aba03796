//! The buffers of a draw.

use super::constraint::TokenMask;
use super::filters::Candidates;
use super::scan::Scan;

/// Buffers that all draws share, so that a step allocates nothing that depends on the vocabulary.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Of the model's row.
    pub(super) raw: Scan,
    /// Of the edited row.
    pub(super) edited: Scan,
    pub(super) row: Vec<f32>,
    pub(super) mask: TokenMask,
    pub(super) choice: Choice,
    /// Scratch memory of the other threads.
    pub(super) others: Vec<Scratch>,
}

/// Buffers of filters and of the choice.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) pool: Candidates,
    pub(super) weights: Vec<f32>,
    pub(super) blocks: Vec<f64>,
}
