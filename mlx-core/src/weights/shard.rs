//! This machine's place among several that each have a part of every layer, and how they add up what they computed.

use std::sync::Arc;

use mlx_rs::Array;
use safetensors::Dtype;

use crate::array;
use crate::error::Result;

/// Adds up what all machines computed of the same numbers.
pub(crate) trait Exchange: Send + Sync {
    /// The sum of the parts of all machines, in the order of their ranks, in place of this machine's part: floats of this type.
    fn sum(&self, dtype: Dtype, part: Vec<u8>) -> Result<Vec<u8>>;
}

/// This machine's place.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) rank: usize,
    /// The number of machines.
    pub(crate) ranks: usize,
    pub(crate) exchange: Arc<dyn Exchange>,
}

impl Shard {
    /// The sum of what all machines have in place of `part`. This machine waits for the others.
    pub(crate) fn sum(&self, part: &Array) -> Result<Array> {
        let shape: Vec<usize> = part.shape().iter().map(|&size| size as usize).collect();
        let (dtype, bytes) = array::to_bytes(part)?;
        array::of_file(&self.exchange.sum(dtype, bytes)?, dtype, &shape)
    }
}
