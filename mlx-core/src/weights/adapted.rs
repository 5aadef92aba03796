//! Weights that an adapter changes: what it adds to modules, what it replaces, and what is left as another model has it.

use mlx_rs::{Array, Dtype};

use super::Weights;
use super::shared::Shared;
use crate::adapter::{Adapter, Factor, Target};
use crate::error::{Error, Result};

/// What a low-rank adapter adds to a module.
pub(crate) struct Factors {
    /// As [`Target`] says, in mlx-lm's layout. In the file's type, or in f32 where the model has another one.
    pub(crate) first: Array,
    /// The same.
    pub(crate) second: Array,
    /// The factor of their product.
    pub(crate) scale: f32,
    /// DoRA's magnitudes, `[output]`.
    pub(crate) magnitude: Option<Array>,
}

impl<'a> Weights<'a> {
    /// Shares parts with the other models that are loaded with the same store; the first of them is the one without an adapter.
    pub(crate) fn sharing(mut self, shared: &'a Shared) -> Self {
        self.shared = Some(shared);
        self
    }

    /// For a part of a model beside it: what that model took with the same store is not taken again, and tensors may be left.
    pub(crate) fn reusing(mut self, shared: &'a Shared) -> Self {
        (self.shared, self.reuses) = (Some(shared), true);
        self
    }

    /// The same weights as `adapter` changes them.
    pub(crate) fn adapted(mut self, mut adapter: Adapter) -> Result<Self> {
        self.replaced = adapter.replace(&mut self.checkpoint)?;
        self.adapter = Some(adapter);
        Ok(self)
    }

    /// Whether an adapter changes them.
    pub(crate) fn is_adapted(&self) -> bool {
        self.adapter.is_some()
    }

    /// What `load` takes under these names, of which the first is its own: as the model without an adapter took it, unless that was
    /// replaced.
    pub(crate) fn shared<T: Clone + 'static>(
        &mut self,
        names: &[&str],
        load: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let (Some(shared), Some(own)) = (self.shared, names.first()) else { return load(self) };
        let may_reuse = self.reuses || self.adapter.is_some() && !self.replaces(names);
        let known = if may_reuse { shared.get(own) } else { None };
        if let Some(known) = known {
            return Ok(known);
        }
        let part = load(self)?;
        if self.adapter.is_none() && !self.reuses {
            shared.put(own, &part);
        }
        Ok(part)
    }

    /// Whether tensors of these modules were replaced.
    fn replaces(&self, names: &[&str]) -> bool {
        let modules: Vec<String> = names.iter().map(|name| self.in_files(&format!("{name}."))).collect();
        self.replaced.iter().any(|tensor| modules.iter().any(|module| tensor.starts_with(module.as_str())))
    }

    /// Takes what the adapter adds to the module that has one of these names.
    pub(crate) fn take_factors(&mut self, names: &[&str], target: Target) -> Result<Option<Factors>> {
        if self.adapter.is_none() {
            return Ok(None);
        }
        let in_files = names.iter().map(|name| {
            let name = self.in_files(&format!("{name}.weight"));
            name.strip_suffix(".weight").unwrap_or(&name).to_owned()
        });
        let names: Vec<String> = in_files.chain(names.iter().map(|name| (*name).to_owned())).collect();
        let Some(adapter) = &mut self.adapter else { return Ok(None) };
        let (scale, found) = (adapter.scale(), adapter.take(&names, target)?);
        let Some(found) = found else { return Ok(None) };
        let magnitude = found.magnitude.map(|factor| self.read_factor(&factor)).transpose()?;
        Ok(Some(Factors {
            first: self.read_factor(&found.first)?,
            second: self.read_factor(&found.second)?,
            scale,
            magnitude,
        }))
    }

    /// Counts the bytes of a change that was made of factors.
    pub(crate) fn hold(&mut self, bytes: usize) {
        self.tally.device_bytes += bytes as u64;
    }

    /// A factor in its own type if that is the model's, else in f32, as their products are.
    fn read_factor(&mut self, factor: &Factor) -> Result<Array> {
        let Some(adapter) = &mut self.adapter else {
            return Err(Error::Array("a factor needs its adapter".into()));
        };
        let array = adapter.array(factor)?;
        let held = if array.dtype() == self.dtype { self.dtype } else { Dtype::Float32 };
        let array = array.as_dtype(held)?;
        array.eval()?;
        Ok(array)
    }
}
