//! How the weights of a checkpoint were quantized, as config.json says it. Invariant: no tensor is touched; whether they agree is
//! checked where they are read.

pub(crate) mod dequantize;
mod matrix;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

pub use matrix::QuantizedMatrix;

use crate::config::Fields;
use crate::error::{Error, Result};

/// How bits become numbers; the names are MLX's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `scale * bits + bias`, with a float scale and bias for each group.
    Affine,
    /// 4-bit floats with an exponent for each group (Open Compute Project, Microscaling Formats, 2023).
    Mxfp4,
    /// 8-bit floats with an exponent for each group (the same).
    Mxfp8,
    /// 4-bit floats with an 8-bit float scale for each group.
    Nvfp4,
}

const MODES: [Mode; 4] = [Mode::Affine, Mode::Mxfp4, Mode::Mxfp8, Mode::Nvfp4];

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        MODES.into_iter().find(|mode| mode.as_str() == name).ok_or_else(|| {
            let known = MODES.map(Self::as_str).join(", ");
            format!("{name:?} is not supported; supported are {known}")
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

    /// The numbers of bits there are.
    fn bits(self) -> &'static [usize] {
        match self {
            Self::Affine => &[2, 3, 4, 5, 6, 8],
            Self::Mxfp8 => &[8],
            Self::Mxfp4 | Self::Nvfp4 => &[4],
        }
    }

    /// The sizes of groups there are.
    fn groups(self) -> &'static [usize] {
        match self {
            Self::Affine => &[32, 64, 128],
            Self::Mxfp4 | Self::Mxfp8 => &[32],
            Self::Nvfp4 => &[16],
        }
    }

    /// What MLX takes for a module whose entry does not name it.
    fn usual(self) -> QuantScheme {
        let (bits, group) = match self {
            Self::Affine => (4, 64),
            other => (other.bits()[0], other.groups()[0]),
        };
        QuantScheme { mode: self, bits, group_size: group }
    }
}

/// How one matrix is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantScheme {
    /// How the bits are read.
    pub mode: Mode,
    /// Bits of a number.
    pub bits: usize,
    /// Neighbors in a row that share a scale.
    pub group_size: usize,
}

impl fmt::Display for QuantScheme {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, bits, group_size: group } = self;
        write!(out, "{} {bits} bits, groups of {group}", mode.as_str())
    }
}

impl QuantScheme {
    /// 4-bit floats in the only form that they have.
    pub const MXFP4: Self = Self { mode: Mode::Mxfp4, bits: 4, group_size: 32 };

    /// Reads `mode`, `bits` and `group_size`. Bits and group may be left out where `partial` says so.
    fn read(fields: &Fields, partial: bool) -> Result<Self> {
        let mode = match fields.optional_text("mode")? {
            None => Mode::Affine,
            Some(name) => name.parse().map_err(|message: String| fields.error("mode", message))?,
        };
        if fields.optional_flag("global_scale")?.unwrap_or(false) {
            return Err(fields.error("global_scale", "is true; scales of scales are not supported"));
        }
        let usual = mode.usual();
        let given = |key, usual| if partial && !fields.has(key) { Ok(usual) } else { fields.size(key) };
        let packing = Self {
            mode,
            bits: given("bits", usual.bits)?,
            group_size: given("group_size", usual.group_size)?,
        };
        packing.checked().map_err(|(key, message)| fields.error(key, message))
    }

    /// What MLX's tools make with these settings; what is not given is what they usually take. On failure, the key that is wrong in
    /// config.json's words, and why.
    pub fn new(
        mode: Mode,
        bits: Option<usize>,
        group: Option<usize>,
    ) -> Result<Self, (&'static str, String)> {
        let usual = mode.usual();
        Self { mode, bits: bits.unwrap_or(usual.bits), group_size: group.unwrap_or(usual.group_size) }
            .checked()
    }

    fn checked(self) -> Result<Self, (&'static str, String)> {
        let of_mode =
            [("bits", self.bits, self.mode.bits()), ("group_size", self.group_size, self.mode.groups())];
        for (key, given, allowed) in of_mode {
            if !allowed.contains(&given) {
                let known = allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                let mode = self.mode.as_str();
                return Err((key, format!("is {given}; for mode {mode:?} it may be {known}")));
            }
        }
        Ok(self)
    }

    /// The 32-bit words that a row of `inputs` numbers takes, if it has whole words and whole groups.
    pub fn words(&self, inputs: usize) -> Option<usize> {
        let whole = inputs.is_multiple_of(self.group_size) && (inputs * self.bits).is_multiple_of(32);
        whole.then_some(inputs * self.bits / 32)
    }

    /// The numbers in a row of `words`.
    pub fn inputs(&self, words: usize) -> usize {
        words * 32 / self.bits
    }

    /// Whether there is a bias beside each scale, and both are floats.
    pub fn has_biases(&self) -> bool {
        self.mode == Mode::Affine
    }
}

/// What config.json says of every module.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuantizationConfig {
    /// For modules that are packed and not named.
    default: Option<QuantScheme>,
    /// Modules with an entry of their own; none is one that was left alone.
    named: BTreeMap<String, Option<QuantScheme>>,
}

impl QuantizationConfig {
    /// Reads `quantization` of config.json, or `quantization_config` where MLX's tools wrote it. Checkpoints that other tools
    /// have quantized are refused.
    pub fn read(fields: &Fields) -> Result<Self> {
        if fields.optional_flag("quantize_activations")?.unwrap_or(false) {
            return Err(fields.error("quantize_activations", "is true; only weights may be quantized"));
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
        let mut recipe = Self { default: Some(QuantScheme::read(section, false)?), named: BTreeMap::new() };
        for module in section.keys() {
            if section.is_object(module) {
                let entry = section.section(module)?.map(|it| QuantScheme::read(&it, true)).transpose()?;
                recipe.named.insert(module.to_owned(), entry);
            } else if section.is_false(module) {
                recipe.named.insert(module.to_owned(), None);
            }
        }
        Ok(recipe)
    }

    /// Whether no module is packed.
    pub fn is_empty(&self) -> bool {
        self.default.is_none() && self.named.is_empty()
    }

    /// How `module` is packed; `scaled` says whether it has scales in the files, as every packed module does. A module that is
    /// named in config.json is what it says there, with scales or without.
    pub fn of(&self, module: &str, scaled: bool) -> Option<QuantScheme> {
        match self.named.get(module) {
            Some(entry) => *entry,
            None => self.default.filter(|_| scaled),
        }
    }
}

/// Refuses what other tools make, by the name of their method.
fn refuse_others(fields: &Fields) -> Result<()> {
    const HELP: &str = "of quantized checkpoints only MLX's are read; take this model from mlx-community on the Hugging Face hub, or as \
                        it was before it was quantized";
    let text = fields.section("text_config")?;
    let places = [Some((fields, "quantization_config")), Some((fields, "compression_config"))];
    for (place, key) in
        places.into_iter().chain([text.as_ref().map(|it| (it, "quantization_config"))]).flatten()
    {
        let Some(section) = place.section(key)? else { continue };
        if let Some(method) = section.optional_text("quant_method")? {
            if method == "mxfp4" && fields.optional_text("model_type")? == Some("gpt_oss") {
                // Its experts say by their tensors' names that they are packed.
                continue;
            }
            return Err(section.error("quant_method", format_args!("is {method:?}; {HELP}")));
        }
        // MLX's older tools wrote their own form under this key.
        if !section.has("bits") || key != "quantization_config" {
            return Err(place.error(key, format_args!("is set; {HELP}")));
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
