//! Which of a model's ways of computing a state a state was computed in.

use serde::{Deserialize, Serialize};

/// One of the ways in which a model computes states. What it means is the model's affair
/// ([`ModelSpec::variant`](crate::model::ModelSpec::variant)); everything else compares variants for equality: a state can stand
/// in for another one only if both have the same variant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Variant(u8);

impl Variant {
    /// The variant that a model numbers `index`; 0 is the default.
    pub(crate) const fn new(index: u8) -> Self {
        Self(index)
    }
}
