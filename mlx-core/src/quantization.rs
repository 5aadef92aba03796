//! The quantization settings of a checkpoint, from config.json. Invariant: no tensor is read here; the loader checks that tensors
//! match the settings.

pub(crate) mod dequantize;
mod matrix;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

pub use matrix::QuantizedMatrix;

use crate::config::Fields;
use crate::error::{Error, Result};

/// A quantization mode; the names are MLX's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `scale * code + bias`, with a float scale and bias per group.
    Affine,
    /// 4-bit floats with an exponent per group (Open Compute Project, Microscaling Formats, 2023).
    Mxfp4,
    /// 8-bit floats with an exponent per group (same specification).
    Mxfp8,
    /// 4-bit floats with an 8-bit float scale per group.
    Nvfp4,
}

const MODES: [Mode; 4] = [Mode::Affine, Mode::Mxfp4, Mode::Mxfp8, Mode::Nvfp4];

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        MODES.into_iter().find(|mode| mode.as_str() == name).ok_or_else(|| {
            let supported = MODES.map(Self::as_str).join(", ");
            format!("{name:?} is not supported; supported are {supported}")
        })
    }
}

impl Mode {
    /// The name in config.json.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// The valid numbers of bits.
    fn bits(self) -> &'static [usize] {
        match self {
            Self::Affine => &[2, 3, 4, 5, 6, 8],
            Self::Mxfp8 => &[8],
            Self::Mxfp4 | Self::Nvfp4 => &[4],
        }
    }

    /// The valid group sizes.
    fn groups(self) -> &'static [usize] {
        match self {
            Self::Affine => &[32, 64, 128],
            Self::Mxfp4 | Self::Mxfp8 => &[32],
            Self::Nvfp4 => &[16],
        }
    }

    /// MLX's defaults for the mode.
    fn defaults(self) -> QuantScheme {
        let (bits, group) = match self {
            Self::Affine => (4, 64),
            other => (other.bits()[0], other.groups()[0]),
        };
        QuantScheme { mode: self, bits, group_size: group }
    }
}

/// How one matrix is quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantScheme {
    /// How codes map to numbers.
    pub mode: Mode,
    /// Bits per number.
    pub bits: usize,
    /// Adjacent numbers of a row that share a scale.
    pub group_size: usize,
}

impl fmt::Display for QuantScheme {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, bits, group_size: group } = self;
        write!(out, "{} {bits} bits, groups of {group}", mode.as_str())
    }
}

impl QuantScheme {
    /// The only valid scheme of mode mxfp4.
    pub const MXFP4: Self = Self { mode: Mode::Mxfp4, bits: 4, group_size: 32 };

    /// Reads `mode`, `bits` and `group_size`. If `partial`, bits and group size default to those of the mode.
    fn read(fields: &Fields, partial: bool) -> Result<Self> {
        let mode = match fields.optional_text("mode")? {
            None => Mode::Affine,
            Some(name) => name.parse().map_err(|message: String| fields.error("mode", message))?,
        };
        if fields.optional_flag("global_scale")?.unwrap_or(false) {
            return Err(fields.error("global_scale", "is true; a global scale is not supported"));
        }
        let defaults = mode.defaults();
        let given = |key, default| if partial && !fields.has(key) { Ok(default) } else { fields.size(key) };
        let scheme = Self {
            mode,
            bits: given("bits", defaults.bits)?,
            group_size: given("group_size", defaults.group_size)?,
        };
        scheme.checked().map_err(|(key, message)| fields.error(key, message))
    }

    /// A scheme from explicit settings, completed with MLX's defaults. An error names the wrong key of config.json and the reason.
    pub fn new(
        mode: Mode,
        bits: Option<usize>,
        group: Option<usize>,
    ) -> Result<Self, (&'static str, String)> {
        let defaults = mode.defaults();
        Self { mode, bits: bits.unwrap_or(defaults.bits), group_size: group.unwrap_or(defaults.group_size) }
            .checked()
    }

    fn checked(self) -> Result<Self, (&'static str, String)> {
        let of_mode =
            [("bits", self.bits, self.mode.bits()), ("group_size", self.group_size, self.mode.groups())];
        for (key, given, allowed) in of_mode {
            if !allowed.contains(&given) {
                let valid = allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                let mode = self.mode.as_str();
                return Err((key, format!("is {given}; mode {mode:?} supports {valid}")));
            }
        }
        Ok(self)
    }

    /// The 32-bit words in a row of `inputs` numbers; `None` unless they are a multiple of words and of groups.
    pub fn words(&self, inputs: usize) -> Option<usize> {
        let fits = inputs.is_multiple_of(self.group_size) && (inputs * self.bits).is_multiple_of(32);
        fits.then_some(inputs * self.bits / 32)
    }

    /// The numbers in a row of `words` 32-bit words.
    pub fn inputs(&self, words: usize) -> usize {
        words * 32 / self.bits
    }

    /// Whether each group has a bias; if so, scales and biases are floats.
    pub fn has_biases(&self) -> bool {
        self.mode == Mode::Affine
    }
}

/// The quantization settings of every module, from config.json.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuantizationConfig {
    /// For quantized modules without an entry of their own.
    default: Option<QuantScheme>,
    /// Modules with an entry of their own; `None` for one that is not quantized.
    modules: BTreeMap<String, Option<QuantScheme>>,
}

impl QuantizationConfig {
    /// Reads `quantization` of config.json, or `quantization_config` as MLX's tools write it. Checkpoints quantized by other tools
    /// are refused.
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

    /// Whether no module is quantized.
    pub fn is_empty(&self) -> bool {
        self.default.is_none() && self.modules.is_empty()
    }

    /// The scheme of `module`, if it is quantized. A module with an entry in config.json follows it; any other is quantized if it has
    /// scales in the files.
    pub fn of(&self, module: &str, has_scales: bool) -> Option<QuantScheme> {
        match self.modules.get(module) {
            Some(entry) => *entry,
            None => self.default.filter(|_| has_scales),
        }
    }
}

/// Refuses checkpoints of other quantization tools, naming the method.
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
