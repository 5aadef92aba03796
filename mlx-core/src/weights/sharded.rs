//! Tensor parallelism: the weights of one of several machines, which has a slice of every layer.

use super::Weights;
use super::cut::{AxisSelection, Slice};
use super::shard::Shard;
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
        let Some(entry) = self.checkpoint.entries().get(&name).filter(|entry| !entry.is_cut()) else {
            return Ok(());
        };
        let Some((shape, cut)) = Slice::at(&entry.shape, entry.length, axis, places) else {
            let count = entry.shape.iter().rev().nth(axis - 1).copied().unwrap_or(0);
            let what = if name.ends_with("scales") { "groups of packed numbers" } else { "numbers" };
            let message = format!(
                "cannot be tensor: {name} has {count} {what}, which do not divide evenly among the machines; use pipeline or another number of machines"
            );
            return Err(Error::option("parallel", message));
        };
        let entry = entry.cut(shape, cut);
        self.checkpoint.replace(&name, entry);
        Ok(())
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
