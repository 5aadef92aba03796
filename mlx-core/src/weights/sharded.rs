//! Weights for one of several machines, each of which has a part of every layer.

use super::Weights;
use super::cut::{Cut, Places};
use super::shard::Shard;
use crate::error::{Error, Result};

impl Weights<'_> {
    /// The same weights for one of several machines, whose tensors were or will be [cut](Self::cut).
    pub(crate) fn sharded(mut self, shard: Shard) -> Self {
        self.shard = Some(shard);
        self
    }

    /// This machine's place, if others have parts of the same layers.
    pub(crate) fn shard(&self) -> Option<&Shard> {
        self.shard.as_ref()
    }

    /// Leaves of the tensor `name`, if it is there, what it has at these places of an axis, counted from 1 for the last one.
    pub(crate) fn cut(&mut self, name: &str, axis: usize, places: &Places) -> Result<()> {
        let name = self.in_files(name);
        let Some(entry) = self.checkpoint.entries().get(&name).filter(|entry| !entry.is_cut()) else {
            return Ok(());
        };
        let Some((shape, cut)) = Cut::at(&entry.shape, entry.length, axis, places) else {
            let count = entry.shape.iter().rev().nth(axis - 1).copied().unwrap_or(0);
            let what = if name.ends_with("scales") { "groups of packed numbers" } else { "numbers" };
            let message = format!(
                "cannot be tensor: {name} has {count} {what}, which the machines cannot share out evenly; use pipeline, or another number of machines"
            );
            return Err(Error::option("parallel", message));
        };
        let entry = entry.cut(shape, cut);
        self.checkpoint.replace(&name, entry);
        Ok(())
    }

    /// Renames the tensor `name`, if it is there, to `other`.
    pub(crate) fn rename_tensor(&mut self, name: &str, other: &str) {
        let (name, other) = (self.in_files(name), self.in_files(other));
        self.checkpoint.rename_tensor(&name, &other);
    }

    /// Counts the bytes in the files again, after tensors were dropped or cut.
    pub(crate) fn recount(&mut self) {
        self.tally.file_bytes = self.checkpoint.entries().values().map(|entry| entry.length as u64).sum();
    }
}
