//! This machine's place among several that each have a part of every layer, and how they add up what they computed.

use std::sync::Arc;

use mlx_rs::Array;
use safetensors::Dtype;

use crate::array;
use crate::error::Result;

/// Sums partial results over all machines.
pub(crate) trait AllReduce: Send + Sync {
    /// Returns the sum of the partial results of all machines in the order of their ranks, floats of this type.
    fn sum(&self, dtype: Dtype, part: Vec<u8>) -> Result<Vec<u8>>;
}

/// This machine's place.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) rank: usize,
    /// The number of machines.
    pub(crate) ranks: usize,
    pub(crate) all_reduce: Arc<dyn AllReduce>,
}

impl Shard {
    /// The sum of what all machines have in place of `part`. This machine waits for the others.
    pub(crate) fn sum(&self, part: &Array) -> Result<Array> {
        let shape: Vec<usize> = part.shape().iter().map(|&size| size as usize).collect();
        let (dtype, bytes) = array::to_bytes(part)?;
        array::of_file(&self.all_reduce.sum(dtype, bytes)?, dtype, &shape)
    }
}
