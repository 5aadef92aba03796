//! The settings of a conversion. Invariant: pure.

use std::path::PathBuf;

use safetensors::Dtype;

use super::rule::Rule;
use crate::quantization::QuantScheme;

/// The settings of a conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertOptions {
    /// The scheme of matrices; `None` leaves them as they are.
    pub scheme: Option<QuantScheme>,
    /// Modules with another scheme, or none; the first rule that matches applies.
    pub rules: Vec<Rule>,
    /// An adapter's folder, whose changes are put into the weights.
    pub adapter: Option<PathBuf>,
    /// The type of the remaining floats; `None` keeps their own.
    pub dtype: Option<Dtype>,
    /// The maximum bytes of tensors in a file.
    pub shard_bytes: u64,
    /// Whether to write into a folder that is not empty.
    pub force: bool,
}
