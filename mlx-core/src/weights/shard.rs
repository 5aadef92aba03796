//! This machine's rank in tensor parallelism, and the all-reduce over partial results.

use std::sync::Arc;

use mlx_rs::Array;

use crate::error::Result;

/// Sums partial results over all machines.
pub(crate) trait AllReduce: Send + Sync {
    /// Returns the sum of all machines' terms, added in the order of ranks. `part` is this machine's term.
    fn sum(&self, part: &Array) -> Result<Array>;
}

/// This machine's rank in tensor parallelism.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) rank: usize,
    /// The number of machines.
    pub(crate) ranks: usize,
    pub(crate) all_reduce: Arc<dyn AllReduce>,
}

impl Shard {
    /// Returns the sum of all machines' terms; `part` is this machine's term.
    pub(crate) fn sum(&self, part: &Array) -> Result<Array> {
        self.all_reduce.sum(part)
    }
}
