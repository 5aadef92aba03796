//! The part of an adapter for one of several machines that share a model.

use xxhash_rust::xxh3::Xxh3;

use super::names::{FactorRole, canonical, in_layer};
use super::{Adapter, Side, float_bytes};
use crate::error::Result;
use crate::weights::AxisSelection;

impl Adapter {
    /// Reduces the change of the module with one of these names, if there is one, to some of the module's inputs or outputs.
    pub(crate) fn cut(&mut self, names: &[String], side: Side, places: &AxisSelection) -> Result<()> {
        let found = names.iter().find_map(|name| self.modules.get(canonical(name).as_ref()));
        let Some(parts) = found else { return Ok(()) };
        let role = if side == Side::Inputs { FactorRole::First } else { FactorRole::Second };
        let factor = &parts[&role];
        let is_stack = self.checkpoint.entries().get(factor).is_some_and(|entry| entry.shape.len() > 2);
        // The factors of a projection are `[input, rank]` and `[rank, output]` in mlx-lm's layout; all others have outputs first.
        let has_outputs_first = self.config.is_transposed || is_stack;
        let axis = if (side == Side::Inputs) == has_outputs_first { 1 } else { 2 };
        self.checkpoint.cut(factor, axis, places)?;
        let magnitude = parts.get(&FactorRole::Magnitude).filter(|_| side == Side::Outputs);
        magnitude.map_or(Ok(()), |magnitude| self.checkpoint.cut(magnitude, 1, places))
    }

    /// Drops the changes of modules in layers that satisfy `unused`. `None` stands for a module outside of layers.
    pub(crate) fn skip(&mut self, unused: impl Fn(Option<usize>) -> bool) {
        self.modules.retain(|module, _| !unused(in_layer(module).map(|(layer, _)| layer)));
    }

    /// The bytes on the device of the changes that remain, for a model that computes in this type.
    pub(crate) fn device_bytes(&self, dtype: &str) -> u64 {
        let bytes = float_bytes(self.dtype == dtype, dtype);
        let tensors = self.modules.values().flat_map(|parts| parts.values());
        let entries = tensors.filter_map(|name| self.checkpoint.entries().get(name));
        entries.map(|entry| entry.shape.iter().product::<usize>() as u64 * bytes).sum()
    }

    /// Returns a number that two folders with the same adapter share: a hash of its config, and of the names, shapes, types and some bytes
    /// of its tensors.
    pub(crate) fn identity(&self) -> Result<u128> {
        let mut hash = Xxh3::new();
        hash.update(format!("{:?}", self.config).as_bytes());
        self.checkpoint.sample(&mut hash)?;
        Ok(hash.digest128())
    }
}
