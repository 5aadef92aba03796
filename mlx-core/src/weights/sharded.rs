//! The weights of one of several machines: tensors that are cut to a slice, and changes of adapters for its layers.

use super::Weights;
use super::checkpoint::Checkpoint;
use super::cut::{AxisSelection, Slice};
use super::shard::Shard;
use crate::adapter::Side;
use crate::error::{Error, Result};

impl Weights<'_> {
    /// Sets this machine's rank. The tensors are [cut](Self::cut) before or after.
    pub(crate) fn sharded(mut self, shard: Shard) -> Self {
        self.shard = Some(shard);
        self
    }

    /// This machine's rank, if the model is tensor parallel.
    pub(crate) fn shard(&self) -> Option<&Shard> {
        self.shard.as_ref()
    }

    /// Reduces the tensor `name`, if present, to these positions of an axis. Axes count from 1 for the last one.
    pub(crate) fn cut(&mut self, name: &str, axis: usize, places: &AxisSelection) -> Result<()> {
        let name = self.file_name_of(name);
        self.checkpoint.cut(&name, axis, places)
    }

    /// Reduces the adapter's change of the module `name`, if there is one, to these inputs or outputs of the module.
    pub(crate) fn cut_change(&mut self, name: &str, side: Side, places: &AxisSelection) -> Result<()> {
        let names = self.module_names(name);
        self.adapter.as_mut().map_or(Ok(()), |adapter| adapter.cut(&names, side, places))
    }

    /// Drops the adapter's changes of layers that satisfy `unused`. `None` stands for a module outside of layers.
    pub(crate) fn skip_changes(&mut self, unused: impl Fn(Option<usize>) -> bool) {
        if let Some(adapter) = &mut self.adapter {
            adapter.skip(unused);
        }
    }

    /// The bytes on the device of the adapter's changes and of the tensors that it replaces. Reads only headers.
    pub(crate) fn change_bytes(&self) -> u64 {
        let replaced = self.sizes().filter(|(name, _)| self.replaced.contains(*name)).map(|(_, bytes)| bytes);
        replaced.sum::<u64>() + self.adapter.as_ref().map_or(0, |adapter| adapter.device_bytes(self.label()))
    }

    /// Renames the tensor `name`, if present, to `other`.
    pub(crate) fn rename_tensor(&mut self, name: &str, other: &str) {
        let (name, other) = (self.file_name_of(name), self.file_name_of(other));
        self.checkpoint.rename_tensor(&name, &other);
    }

    /// Recomputes the bytes in the files after tensors were dropped or cut.
    pub(crate) fn recount(&mut self) {
        self.tally.file_bytes = self.checkpoint.entries().values().map(|entry| entry.file_bytes).sum();
    }
}

impl Checkpoint {
    /// Reduces the tensor `name`, if present, to these positions of an axis. Axes count from 1 for the last one.
    pub(crate) fn cut(&mut self, name: &str, axis: usize, places: &AxisSelection) -> Result<()> {
        let Some(entry) = self.entries().get(name).filter(|entry| !entry.is_cut()) else { return Ok(()) };
        let Some((shape, cut)) = Slice::at(&entry.shape, entry.length, axis, places) else {
            let count = entry.shape.iter().rev().nth(axis - 1).copied().unwrap_or(0);
            let what = if name.ends_with("scales") { "groups of packed numbers" } else { "numbers" };
            let message = format!(
                "cannot be tensor: {name} has {count} {what}, which do not divide evenly among the machines; use pipeline or another number of machines"
            );
            return Err(Error::option("parallel", message));
        };
        let entry = entry.cut(shape, cut);
        self.replace(name, entry);
        Ok(())
    }
}
