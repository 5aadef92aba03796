//! Weights that an adapter changes: low-rank updates, replaced tensors, and modules shared with the base model.

use mlx_rs::{Array, Dtype};

use super::Weights;
use super::shared::Shared;
use crate::adapter::{Adapter, Factor, Target};
use crate::error::{Error, Result};

/// The low-rank update of a module by an adapter.
pub(crate) struct Factors {
    /// The factors in mlx-lm's layout for a [`Target`]. In the file's type if that is the model's, else in f32.
    pub(crate) first: Array,
    pub(crate) second: Array,
    /// The scale of their product.
    pub(crate) scale: f32,
    /// DoRA's magnitudes, `[output]`.
    pub(crate) magnitude: Option<Array>,
}

impl<'a> Weights<'a> {
    /// Shares modules through `shared`. The first model loaded with it must be the base model.
    pub(crate) fn sharing(mut self, shared: &'a Shared) -> Self {
        self.shared = Some(shared);
        self
    }

    /// Reuses the modules that the base model put into `shared`, for an extension of that model. Tensors may remain unused.
    pub(crate) fn reusing(mut self, shared: &'a Shared) -> Self {
        (self.shared, self.reuses) = (Some(shared), true);
        self
    }

    /// Applies `adapter` to the weights.
    pub(crate) fn adapted(mut self, mut adapter: Adapter) -> Result<Self> {
        self.replaced = adapter.replace(&mut self.checkpoint)?;
        self.adapter = Some(adapter);
        Ok(self)
    }

    /// Returns true if an adapter changes the weights.
    pub(crate) fn is_adapted(&self) -> bool {
        self.adapter.is_some()
    }

    /// Returns what `load` makes of the modules `names`, the first of which is the key. Reuses the base model's result unless the adapter
    /// replaced one of the modules.
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

    /// Returns true if the adapter replaced tensors of these modules.
    fn replaces(&self, names: &[&str]) -> bool {
        let modules: Vec<String> = names.iter().map(|name| self.file_name_of(&format!("{name}."))).collect();
        self.replaced.iter().any(|tensor| modules.iter().any(|module| tensor.starts_with(module.as_str())))
    }

    /// Takes the adapter's factors of the module that has one of these names.
    pub(crate) fn take_factors(&mut self, names: &[&str], target: Target) -> Result<Option<Factors>> {
        if self.adapter.is_none() {
            return Ok(None);
        }
        let names: Vec<String> = names.iter().flat_map(|name| self.module_names(name)).collect();
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

    /// Returns the names that an adapter may use for the module `name`: the one in the files, and the decoder's.
    pub(super) fn module_names(&self, name: &str) -> [String; 2] {
        let in_files = self.file_name_of(&format!("{name}.weight"));
        [in_files.strip_suffix(".weight").unwrap_or(&in_files).to_owned(), name.to_owned()]
    }

    /// Counts the device bytes of a change that was computed from factors.
    pub(crate) fn hold(&mut self, bytes: usize) {
        self.tally.device_bytes += bytes as u64;
    }

    /// Reads a factor. It keeps its type if that is the model's; otherwise it becomes f32, like the product of the factors.
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
