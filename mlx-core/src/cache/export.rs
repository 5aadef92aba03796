//! Conversion of states to and from host memory, for saving them to disk and restoring them. Layers that keep every position are
//! saved in blocks, the others as checkpoints. Layers of a store follow the others.

use std::ops::Range;
use std::time::{Duration, Instant};

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::disk::{Block, Layer, Snapshot};
use super::layer::{LayerCheckpoint, LayerState};
use super::sequence::SequenceState;
use super::state_store::SavedPart;
use crate::array::{float_dtype, from_bytes, to_bytes};
use crate::error::{Error, Result};

/// The maximum time to import blocks into a store, since the sequences of an engine wait meanwhile, and its process must not count as stuck.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);

impl SequenceState {
    /// Exports positions of the layers that keep all of them; `None` if a layer no longer has exact values.
    pub(crate) fn export(&self, range: Range<usize>) -> Result<Option<Vec<Layer>>> {
        let layer = |cache: &LayerState| cache.part(range.clone())?.map(|part| layer(&part)).transpose();
        let own: Option<Vec<Layer>> = self
            .layers
            .iter()
            .filter(|layer| layer.keeps_every_position())
            .map(layer)
            .collect::<Result<_>>()?;
        let part = SavedPart::Positions(range.clone());
        let stored = self.store().map_or(Ok(Some(Vec::new())), |store| store.export(&part))?;
        Ok(own.zip(stored).map(|(own, stored)| own.into_iter().chain(stored.into_iter().flatten()).collect()))
    }

    /// Fills the layers of an empty state that keep every position with consecutive blocks. Evaluates each layer before the next, so
    /// that at most one layer is in memory twice.
    pub(crate) fn import(&mut self, blocks: &[Block]) -> Result<()> {
        let mut caches: Vec<_> =
            self.layers.iter_mut().filter(|layer| layer.keeps_every_position()).collect();
        let count = caches.len();
        if blocks.iter().any(|block| block.layers.len() < count) {
            return Err(Error::Cache("saved blocks have fewer layers than the model".into()));
        }
        for (index, cache) in caches.iter_mut().enumerate() {
            let parts = blocks.iter().map(|block| array(&block.layers[index]));
            append(cache, &parts.collect::<Result<Vec<_>>>()?)?;
        }
        let begun = Instant::now();
        for block in blocks {
            if begun.elapsed() > STORE_TIMEOUT {
                return Err(Error::Cache(format!(
                    "other machines took more than {} s to restore it; it is computed instead",
                    STORE_TIMEOUT.as_secs()
                )));
            }
            let stored: Vec<&[Layer]> = block.layers[count..].chunks(1).collect();
            let start = block.place.start;
            self.import_stored(&SavedPart::Positions(start..start + block.place.tokens.len()), &stored)?;
        }
        Ok(())
    }

    /// Exports the other layers at `length`: the state's own length or that of a checkpoint, else `None`.
    pub(crate) fn export_checkpoint(&self, length: usize) -> Result<Option<Vec<Vec<Layer>>>> {
        let Some(checkpoint) = self.checkpoint_at(length)? else { return Ok(None) };
        let others = checkpoint.iter().filter(|layer| !matches!(layer, LayerCheckpoint::Length));
        let saved = |arrays: Vec<Array>| arrays.iter().map(layer).collect();
        let own = others.map(|layer| saved(layer.contents()?)).collect::<Result<Vec<_>>>()?;
        let part = SavedPart::Checkpoint(length);
        let stored = self.store().map_or(Ok(Some(Vec::new())), |store| store.export(&part))?;
        Ok(stored.map(|stored| [own, stored].concat()))
    }

    /// Fills the other layers with a checkpoint taken at `length`.
    pub(crate) fn import_checkpoint(&mut self, snapshot: &Snapshot, length: usize) -> Result<()> {
        let others = self.layers.iter().filter(|layer| !layer.keeps_every_position()).count();
        let Some((own, stored)) = snapshot.layers.split_at_checked(others) else {
            return Err(Error::Cache("a saved checkpoint has fewer layers than the model".into()));
        };
        self.fill(own.iter().map(Vec::as_slice), length)?;
        let stored: Vec<&[Layer]> = stored.iter().map(Vec::as_slice).collect();
        self.import_stored(&SavedPart::Checkpoint(length), &stored)
    }

    /// Fills the layers that do not keep every position.
    fn fill<'a>(&mut self, saved: impl Iterator<Item = &'a [Layer]>, length: usize) -> Result<()> {
        let others = self.layers.iter_mut().filter(|layer| !layer.keeps_every_position());
        for (layer, saved) in others.zip(saved) {
            layer.fill(saved.iter().map(array).collect::<Result<_>>()?, length)?;
        }
        Ok(())
    }

    /// Imports layers into the store. Fails if there are layers but no store.
    fn import_stored(&mut self, part: &SavedPart, layers: &[&[Layer]]) -> Result<()> {
        match self.store_mut() {
            Some(store) => store.import(part, layers),
            None if layers.is_empty() => Ok(()),
            None => Err(Error::Cache("saved layers are more than the model has".into())),
        }
    }

    /// Exports a part of a state whose layers are all here, as arrays of each layer.
    pub(crate) fn export_part(&self, part: &SavedPart) -> Result<Option<Vec<Vec<Layer>>>> {
        match part {
            SavedPart::Positions(range) => {
                let layers = self.export(range.clone())?;
                Ok(layers.map(|layers| layers.into_iter().map(|layer| vec![layer]).collect()))
            }
            SavedPart::Checkpoint(length) => self.export_checkpoint(*length),
        }
    }

    /// Imports a part into a state whose layers are all here. Positions follow those in the state.
    pub(crate) fn import_part(&mut self, part: &SavedPart, layers: &[Vec<Layer>]) -> Result<()> {
        if layers.len() != self.saved_layers().of(part) {
            return Err(Error::Cache("a saved part has another number of layers than the model".into()));
        }
        match part {
            SavedPart::Positions(range) if range.start == self.offset_of_kept() => {
                let caches = self.layers.iter_mut().filter(|layer| layer.keeps_every_position());
                for (cache, saved) in caches.zip(layers) {
                    append(cache, &saved.iter().map(array).collect::<Result<Vec<_>>>()?)?;
                }
                Ok(())
            }
            SavedPart::Positions(_) => Err(Error::Cache("saved positions do not follow each other".into())),
            SavedPart::Checkpoint(length) => self.fill(layers.iter().map(Vec::as_slice), *length),
        }
    }
}

/// Appends consecutive positions to a layer and evaluates it.
fn append(cache: &mut LayerState, parts: &[Array]) -> Result<()> {
    cache.append(&concatenate(parts, 2)?)?;
    for array in cache.arrays() {
        array.eval()?;
    }
    Ok(())
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
