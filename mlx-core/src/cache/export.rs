//! Conversion of states to and from host memory, for saving them to disk and restoring them. Layers that keep every position are
//! saved in blocks, the others as checkpoints.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::disk::{Block, Layer, Snapshot};
use super::layer::{LayerCheckpoint, LayerState};
use super::sequence::SequenceState;
use crate::array::{float_dtype, from_bytes, to_bytes};
use crate::error::{Error, Result};

impl SequenceState {
    /// Exports positions of the layers that keep all of them; `None` if a layer no longer has exact values, or a store holds some layers.
    pub(crate) fn export(&self, range: Range<usize>) -> Result<Option<Vec<Layer>>> {
        if !self.has_all_layers() {
            return Ok(None);
        }
        let layer = |cache: &LayerState| cache.part(range.clone())?.map(|part| layer(&part)).transpose();
        self.layers.iter().filter(|layer| layer.keeps_every_position()).map(layer).collect()
    }

    /// Fills the layers of an empty state that keep every position with consecutive blocks. Evaluates each layer before the next, so
    /// that at most one layer is in memory twice.
    pub(crate) fn import(&mut self, blocks: &[Block]) -> Result<()> {
        let mut caches: Vec<_> =
            self.layers.iter_mut().filter(|layer| layer.keeps_every_position()).collect();
        if blocks.iter().any(|block| block.layers.len() != caches.len()) {
            return Err(Error::Cache("saved blocks have a different number of layers than the model".into()));
        }
        for (index, cache) in caches.iter_mut().enumerate() {
            let parts: Vec<_> =
                blocks.iter().map(|block| array(&block.layers[index])).collect::<Result<_>>()?;
            cache.append(&concatenate(&parts, 2)?)?;
            for array in cache.arrays() {
                array.eval()?;
            }
        }
        Ok(())
    }

    /// Exports the other layers at `length`: the state's own length or that of a checkpoint, else `None`.
    pub(crate) fn export_checkpoint(&self, length: usize) -> Result<Option<Vec<Vec<Layer>>>> {
        let Some(checkpoint) = self.checkpoint_at(length)? else { return Ok(None) };
        let others = checkpoint.iter().filter(|layer| !matches!(layer, LayerCheckpoint::Length));
        let saved = |arrays: Vec<Array>| arrays.iter().map(layer).collect();
        others.map(|layer| saved(layer.contents()?)).collect::<Result<_>>().map(Some)
    }

    /// Fills the other layers with a checkpoint taken at `length`.
    pub(crate) fn import_checkpoint(&mut self, snapshot: &Snapshot, length: usize) -> Result<()> {
        let mut others: Vec<_> =
            self.layers.iter_mut().filter(|layer| !layer.keeps_every_position()).collect();
        if others.len() != snapshot.layers.len() {
            return Err(Error::Cache(
                "a saved checkpoint has a different number of layers than the model".into(),
            ));
        }
        for (layer, saved) in others.iter_mut().zip(&snapshot.layers) {
            let arrays: Vec<Array> = saved.iter().map(array).collect::<Result<_>>()?;
            layer.fill(arrays, length)?;
        }
        Ok(())
    }
}

fn layer(array: &Array) -> Result<Layer> {
    let (dtype, bytes) = to_bytes(array)?;
    let shape = array.shape().iter().map(|&size| size as usize).collect();
    Ok(Layer { dtype, shape, bytes })
}

fn array(layer: &Layer) -> Result<Array> {
    let dtype = float_dtype(layer.dtype)
        .ok_or_else(|| Error::Cache(format!("a saved block has the unsupported type {:?}", layer.dtype)))?;
    let shape: Vec<i32> = layer.shape.iter().map(|&size| size as i32).collect();
    from_bytes(&layer.bytes, dtype, &shape)
}
