//! Weights for one of several machines, each of which has a part of every layer.

use super::Weights;
use super::cut::Cut;
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

    /// Leaves of the tensor `name`, if it is there, one of `ranks` shares of an axis, counted from 1 for the last one: the part of `rank`
    /// of each of some blocks of these relative lengths.
    pub(crate) fn cut(
        &mut self,
        name: &str,
        axis: usize,
        blocks: &[usize],
        (rank, ranks): (usize, usize),
    ) -> Result<()> {
        let name = self.in_files(name);
        let Some(entry) = self.checkpoint.entries().get(&name).filter(|entry| !entry.is_cut()) else {
            return Ok(());
        };
        let Some((shape, cut)) = Cut::share(&entry.shape, entry.length, axis, blocks, (rank, ranks)) else {
            let count = entry.shape.iter().rev().nth(axis - 1).copied().unwrap_or(0);
            let what = if name.ends_with("scales") { "groups of packed numbers" } else { "numbers" };
            let message = format!(
                "cannot be tensor on {ranks} machines: {name} has {count} {what} that they would have to share out evenly; use pipeline, or another number of machines"
            );
            return Err(Error::option("parallel", message));
        };
        let entry = entry.cut(shape, cut);
        self.checkpoint.replace(&name, entry);
        Ok(())
    }

    /// Counts the bytes in the files again, after tensors were dropped or cut.
    pub(crate) fn recount(&mut self) {
        self.tally.file_bytes = self.checkpoint.entries().values().map(|entry| entry.length as u64).sum();
    }
}
