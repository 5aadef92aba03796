//! The quantization settings of a checkpoint, from config.json. Invariant: this code reads no tensors. The loader checks that tensors match
//! the settings.

pub(crate) mod dequantize;
mod foreign;
mod inputs;
mod matrix;
mod rotation;
mod scheme;

use std::collections::BTreeMap;

pub(crate) use foreign::{Foreign, Integers, Tool};
pub(crate) use inputs::{INPUT_PARTS, InputChange};
pub use matrix::QuantizedMatrix;
pub use scheme::{Mode, QuantScheme};

use crate::config::Fields;
use crate::error::Result;

/// The tensors of a quantized matrix. Only affine schemes have biases. Row scales are f32 `[..., output, 1]`; only matrices of
/// [`Foreign`] checkpoints have them.
pub(crate) const MATRIX_PARTS: [&str; 4] = ["weight", "scales", "biases", "row_scales"];

/// The quantization settings of all modules, from config.json.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuantizationConfig {
    /// The scheme of quantized modules without an entry.
    default: Option<QuantScheme>,
    /// The modules with an entry; `None` for a module that is not quantized.
    modules: BTreeMap<String, Option<QuantScheme>>,
    /// The settings of another tool. Its modules get their entries when the files are opened.
    foreign: Option<Foreign>,
    /// The sizes of blocks of the modules that rotate their inputs.
    rotations: BTreeMap<String, usize>,
}

impl QuantizationConfig {
    /// Reads `quantization` of config.json, or `quantization_config` as MLX's or other tools write it. Rejects unsupported tools.
    pub fn read(fields: &Fields) -> Result<Self> {
        if fields.optional_flag("quantize_activations")?.unwrap_or(false) {
            return Err(
                fields.error("quantize_activations", "is true; quantized activations are not supported")
            );
        }
        if let Some(section) = fields.section("quantization")? {
            return Ok(Self { rotations: rotation::read(fields)?, ..Self::of_section(&section)? });
        }
        if let Some(foreign) = foreign::read(fields)? {
            return Ok(Self { foreign: Some(foreign), ..Self::default() });
        }
        match fields.section("quantization_config")? {
            Some(section) if !section.has("quant_method") => Self::of_section(&section),
            _ => Ok(Self::default()),
        }
    }

    fn of_section(section: &Fields) -> Result<Self> {
        let default = Some(QuantScheme::read(section, false)?);
        let mut config = Self { default, ..Self::default() };
        for module in section.keys() {
            if section.is_object(module) {
                let entry = section.section(module)?.map(|it| QuantScheme::read(&it, true)).transpose()?;
                config.modules.insert(module.to_owned(), entry);
            } else if section.is_false(module) {
                config.modules.insert(module.to_owned(), None);
            }
        }
        Ok(config)
    }

    /// Adds `prefix` to the names of modules that satisfy `lacks`.
    pub(crate) fn add_prefix(&mut self, prefix: &str, lacks: impl Fn(&str) -> bool) {
        let full = |name: String| if lacks(&name) { format!("{prefix}{name}") } else { name };
        let modules = std::mem::take(&mut self.modules).into_iter();
        self.modules = modules.map(|(name, scheme)| (full(name), scheme)).collect();
    }

    /// Returns true if no module is quantized.
    pub fn is_empty(&self) -> bool {
        self.default.is_none() && self.modules.is_empty() && self.foreign.is_none()
    }

    /// Creates the settings of these modules. No others are quantized.
    pub(crate) fn of_modules(modules: BTreeMap<String, QuantScheme>) -> Self {
        let modules = modules.into_iter().map(|(name, scheme)| (name, Some(scheme))).collect();
        Self { modules, ..Self::default() }
    }

    /// The settings of another tool, if it quantized the checkpoint.
    pub(crate) fn foreign(&self) -> Option<&Foreign> {
        self.foreign.as_ref()
    }

    /// Returns true if loading replaces the tensors by others in MLX's packing.
    pub(crate) fn is_rewritten(&self) -> bool {
        self.foreign.is_some() || self.has_one_bit()
    }

    /// Returns true if a module may have codes of 1 bit.
    pub(crate) fn has_one_bit(&self) -> bool {
        self.default.iter().chain(self.modules.values().flatten()).any(|scheme| scheme.bits == 1)
    }

    /// Returns the settings after codes of 1 bit were widened to 2 bits.
    pub(crate) fn widened(mut self) -> Self {
        for scheme in self.default.iter_mut().chain(self.modules.values_mut().flatten()) {
            scheme.bits = scheme.bits.max(2);
        }
        self
    }

    /// Returns the number of inputs that a Hadamard transform combines, if `module` rotates its inputs.
    pub(crate) fn rotation_of(&self, module: &str) -> Option<usize> {
        self.rotations.get(module).copied()
    }

    /// Returns the scheme of `module`, if it is quantized. An entry in config.json decides this. Without an entry, a module is quantized if it
    /// has scales in the files.
    pub fn of(&self, module: &str, has_scales: bool) -> Option<QuantScheme> {
        match self.modules.get(module) {
            Some(entry) => *entry,
            None => self.default.filter(|_| has_scales),
        }
    }
}
