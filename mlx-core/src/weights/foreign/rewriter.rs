//! Replaces tensors of a checkpoint, module by module.

use std::collections::BTreeMap;
use std::sync::Arc;

use safetensors::Dtype;

use super::computed::{Computed, Rows};
use super::operand::Operand;
use crate::error::{Error, Result};
use crate::quantization::QuantScheme;
use crate::weights::checkpoint::Checkpoint;

/// A checkpoint whose tensors are being replaced.
pub(super) struct Rewriter<'a> {
    checkpoint: &'a mut Checkpoint,
    schemes: BTreeMap<String, QuantScheme>,
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(checkpoint: &'a mut Checkpoint) -> Self {
        Self { checkpoint, schemes: BTreeMap::new() }
    }

    /// Returns the schemes of the modules that were replaced.
    pub(super) fn into_schemes(self) -> BTreeMap<String, QuantScheme> {
        self.schemes
    }

    /// Rejects checkpoints whose inputs must be scaled before the product.
    pub(super) fn expect_no_input_scales(&self) -> Result<()> {
        let scales = self.checkpoint.entries().iter().find(|(name, _)| name.ends_with(".pre_quant_scale"));
        match scales {
            None => Ok(()),
            Some((name, entry)) => Err(self.checkpoint.error(
                entry,
                format!("tensor {name} scales inputs (AWQ of ModelOpt), which is not supported"),
            )),
        }
    }

    /// Lists the modules that have a tensor `{module}.{part}` of one of these types.
    pub(super) fn modules(&self, part: &str, types: &[Dtype]) -> Vec<String> {
        let end = format!(".{part}");
        let named = self.checkpoint.entries().iter().filter(|(_, entry)| types.contains(&entry.dtype));
        named.filter_map(|(name, _)| name.strip_suffix(&end).map(str::to_owned)).collect()
    }

    /// Lists the tensors of this type that hold a stack of matrices.
    pub(super) fn stacks(&self, dtype: Dtype) -> Vec<String> {
        let stacks = self.checkpoint.entries().iter();
        let stacks = stacks.filter(|(_, entry)| entry.dtype == dtype && entry.shape.len() == 3);
        stacks.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the tensor `name`, if there is one, and leaves it in the checkpoint.
    pub(super) fn peek(&self, name: &str) -> Option<Operand> {
        let entry = self.checkpoint.entries().get(name)?.clone();
        let source = self.checkpoint.source(&entry);
        Some(Operand { name: name.to_owned(), entry, source })
    }

    /// Takes the tensor `name`, if there is one.
    pub(super) fn find(&mut self, name: &str) -> Option<Arc<Operand>> {
        let entry = self.checkpoint.remove(name)?;
        let source = self.checkpoint.source(&entry);
        Some(Arc::new(Operand { name: name.to_owned(), entry, source }))
    }

    /// Takes the tensor `{module}.{part}`.
    pub(super) fn take(&mut self, module: &str, part: &str) -> Result<Arc<Operand>> {
        self.find(&format!("{module}.{part}")).ok_or_else(|| {
            Error::file(self.checkpoint.main_file(), format!("tensor {module}.{part} is missing"))
        })
    }

    /// Drops the bias of a module if all its numbers are 0. The module may still have a bias in the family.
    pub(super) fn drop_zero_bias(&mut self, module: &str) -> Result<()> {
        self.checkpoint.drop_zeros(&format!("{module}.bias"))
    }

    /// Keeps tensors of a module in f32, even if the model computes in a smaller type.
    pub(super) fn keep_wide(&mut self, module: &str, parts: [&str; 2]) {
        for part in parts {
            self.checkpoint.keep_wide(&format!("{module}.{part}"));
        }
    }

    /// Adds `{module}.{part}` with the bytes of `operand`.
    pub(super) fn put_as(
        &mut self,
        module: &str,
        part: &str,
        operand: &Operand,
        dtype: Dtype,
        shape: Vec<usize>,
    ) {
        self.checkpoint.replace(&format!("{module}.{part}"), operand.entry.clone().viewed_as(dtype, shape));
    }

    /// Adds the tensor `name` with computed rows. Errors name the file of `operand`. `file_bytes` are the bytes in the files that it
    /// replaces.
    pub(super) fn put(
        &mut self,
        name: &str,
        (dtype, shape): (Dtype, Vec<usize>),
        computed: impl Rows + 'static,
        operand: &Operand,
        file_bytes: u64,
    ) {
        let (width, rows) =
            shape.split_last().map_or((1, 1), |(width, rows)| (*width, rows.iter().product()));
        let path = operand.path().to_path_buf();
        let computed = Computed::new(computed, rows, width * dtype.bitsize() / 8, path);
        self.checkpoint.add_computed(name.to_owned(), dtype, shape, Arc::new(computed)).file_bytes =
            file_bytes;
    }

    /// Sets the scheme of `module`.
    pub(super) fn set_scheme(&mut self, module: String, scheme: QuantScheme) {
        self.schemes.insert(module, scheme);
    }

    /// Sets the format in the files of the tensor `name`.
    pub(super) fn set_origin(&mut self, name: &str, origin: &'static str) {
        self.checkpoint.set_origin(name, origin);
    }
}
