//! A decode pass that is on the device.

use crate::array::Rows;
use crate::model::{Hidden, Issued};

/// One decode pass: a row for each sequence, and behind it one for each token of its draft that is verified. Ids rise.
pub(in crate::engine) struct DecodePass {
    pub(in crate::engine) ids: Vec<u64>,
    /// How many rows each of them has.
    pub(in crate::engine) rows: Vec<usize>,
    pub(in crate::engine) logits: Rows,
    /// The hidden states of the rows after the last norm, if a head drafts from them, with padding.
    pub(in crate::engine) hidden: Option<Hidden>,
    /// Its first layers, if they were issued on their own.
    pub(in crate::engine) front: Option<Issued>,
}
