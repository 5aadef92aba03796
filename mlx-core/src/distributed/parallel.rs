//! How a model is divided among machines.

use serde::{Deserialize, Serialize};

use crate::variant_names::impl_variant_names;

/// How a model is divided among machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parallel {
    /// Each has some layers.
    #[default]
    Pipeline,
    /// Each has a part of every layer.
    Tensor,
}

impl_variant_names!(Parallel, |name| format!("{name:?} is no way to divide a model; use pipeline or tensor"));
