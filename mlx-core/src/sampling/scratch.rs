//! The buffers of a draw.

use super::constraint::TokenMask;
use super::filters::Candidates;

/// Buffers that all draws share, so that a step allocates nothing that depends on the vocabulary.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) pool: Candidates,
    pub(super) row: Vec<f32>,
    pub(super) weights: Vec<f32>,
    pub(super) blocks: Vec<f64>,
    pub(super) mask: TokenMask,
}
