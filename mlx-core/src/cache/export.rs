//! States from and to host memory, block by block: what is saved on disk and restored from it.

use std::ops::Range;

use mlx_rs::ops::concatenate;

use super::disk::{Block, Layer};
use super::layer::LayerState;
use super::sequence::SequenceState;
use crate::array::{float_dtype, from_bytes, to_bytes};
use crate::error::{Error, Result};

impl SequenceState {
    /// Some positions of all layers; `None` if a layer does not have all of them as they were computed.
    pub(crate) fn export(&self, range: Range<usize>) -> Result<Option<Vec<Layer>>> {
        let layer = |cache: &LayerState| {
            let Some(part) = cache.part(range.clone())? else { return Ok(None) };
            let (dtype, bytes) = to_bytes(&part)?;
            let shape = part.shape().iter().map(|&size| size as usize).collect();
            Ok(Some(Layer { dtype, shape, bytes }))
        };
        self.layers.iter().map(layer).collect()
    }

    /// Fills an empty state with blocks that follow one another: one layer after the other, so that no more than one is in memory
    /// twice.
    pub(crate) fn import(&mut self, blocks: &[Block]) -> Result<()> {
        if blocks.iter().any(|block| block.layers.len() != self.layers.len()) {
            return Err(Error::Cache("saved blocks have another number of layers".into()));
        }
        for (index, cache) in self.layers.iter_mut().enumerate() {
            let parts: Vec<_> =
                blocks.iter().map(|block| array(&block.layers[index])).collect::<Result<_>>()?;
            cache.append(&concatenate(&parts, 2)?)?;
            for array in cache.arrays() {
                array.eval()?;
            }
        }
        Ok(())
    }
}

fn array(layer: &Layer) -> Result<mlx_rs::Array> {
    let dtype = float_dtype(layer.dtype)
        .ok_or_else(|| Error::Cache(format!("a saved block has type {:?}", layer.dtype)))?;
    let shape: Vec<i32> = layer.shape.iter().map(|&size| size as i32).collect();
    from_bytes(&layer.bytes, dtype, &shape)
}
