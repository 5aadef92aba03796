//! The variant of a model's computation that produced a state.

use serde::{Deserialize, Serialize};

/// One of the ways in which a model computes states. Only the model knows its meaning
/// ([`ModelSpec::variant`](crate::model::ModelSpec::variant)). Other code only compares variants: two states are interchangeable only
/// if their variants are equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Variant(u8);

impl Variant {
    /// Creates the variant with this number; 0 is the default.
    pub(crate) const fn new(index: u8) -> Self {
        Self(index)
    }
}
