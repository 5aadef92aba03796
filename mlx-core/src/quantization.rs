//! The quantization settings of a checkpoint, from config.json. Invariant: this code reads no tensors. The loader checks that tensors match
//! the settings.

pub(crate) mod dequantize;
mod matrix;
mod scheme;

use std::collections::BTreeMap;

pub use matrix::QuantizedMatrix;
pub use scheme::{Mode, QuantScheme};

use crate::config::Fields;
use crate::error::{Error, Result};

/// The quantization settings of all modules, from config.json.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuantizationConfig {
    /// The scheme of quantized modules without an entry.
    default: Option<QuantScheme>,
    /// The modules with an entry; `None` for a module that is not quantized.
    modules: BTreeMap<String, Option<QuantScheme>>,
}

impl QuantizationConfig {
    /// Reads `quantization` of config.json, or `quantization_config` as MLX's tools write it. Rejects checkpoints quantized by other tools.
    pub fn read(fields: &Fields) -> Result<Self> {
        if fields.optional_flag("quantize_activations")?.unwrap_or(false) {
            return Err(
                fields.error("quantize_activations", "is true; quantized activations are not supported")
            );
        }
        if let Some(section) = fields.section("quantization")? {
            return Self::of_section(&section);
        }
        refuse_others(fields)?;
        match fields.section("quantization_config")? {
            Some(section) if !section.has("quant_method") => Self::of_section(&section),
            _ => Ok(Self::default()),
        }
    }

    fn of_section(section: &Fields) -> Result<Self> {
        let mut config = Self { default: Some(QuantScheme::read(section, false)?), modules: BTreeMap::new() };
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
        self.default.is_none() && self.modules.is_empty()
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

/// Rejects checkpoints of other quantization tools. The error names the tool's method.
fn refuse_others(fields: &Fields) -> Result<()> {
    const HELP: &str = "only checkpoints quantized with MLX are supported; use a version from mlx-community on the Hugging Face Hub, or the \
                        original before quantization";
    let text = fields.section("text_config")?;
    let sections = [Some((fields, "quantization_config")), Some((fields, "compression_config"))];
    for (parent, key) in
        sections.into_iter().chain([text.as_ref().map(|it| (it, "quantization_config"))]).flatten()
    {
        let Some(section) = parent.section(key)? else { continue };
        if let Some(method) = section.optional_text("quant_method")? {
            if method == "mxfp4" && fields.optional_text("model_type")? == Some("gpt_oss") {
                // The names of its expert tensors show that they are quantized.
                continue;
            }
            return Err(section.error("quant_method", format_args!("is {method:?}; {HELP}")));
        }
        // Older MLX tools wrote their settings under this key.
        if !section.has("bits") || key != "quantization_config" {
            return Err(parent.error(key, format_args!("is set; {HELP}")));
        }
    }
    let modelopt = fields.path().with_file_name("hf_quant_config.json");
    if modelopt.exists() && !fields.has("quantization_config") {
        return Err(Error::file(
            modelopt,
            format!("says that NVIDIA's ModelOpt quantized this model; {HELP}"),
        ));
    }
    Ok(())
}
