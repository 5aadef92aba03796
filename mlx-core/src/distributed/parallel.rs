//! The ways to divide a model among machines: pipeline or tensor parallelism.

use serde::{Deserialize, Serialize};

use crate::variant_names::impl_variant_names;

/// The way a model is divided among machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parallel {
    /// Each machine has consecutive layers.
    #[default]
    Pipeline,
    /// Each machine has a shard of every layer.
    Tensor,
}

impl_variant_names!(Parallel, |name| format!("{name:?} is not a parallel mode; use pipeline or tensor"));
