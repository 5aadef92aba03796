//! This machine's rank in tensor parallelism, and the all-reduce over partial results.

use std::sync::Arc;

use mlx_rs::Array;
use safetensors::Dtype;

use crate::array;
use crate::error::Result;

/// Sums partial results over all machines.
pub(crate) trait AllReduce: Send + Sync {
    /// Returns the sum of all machines' partial results in rank order. They are floats of this type.
    fn sum(&self, dtype: Dtype, part: Vec<u8>) -> Result<Vec<u8>>;
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
    /// Returns the sum of all machines' terms; `part` is this machine's term. Blocks until the others have sent theirs.
    pub(crate) fn sum(&self, part: &Array) -> Result<Array> {
        let shape: Vec<usize> = part.shape().iter().map(|&size| size as usize).collect();
        let (dtype, bytes) = array::to_bytes(part)?;
        array::of_file(&self.all_reduce.sum(dtype, bytes)?, dtype, &shape)
    }
}
