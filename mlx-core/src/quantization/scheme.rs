//! The quantization scheme of a matrix: mode, bits and group size, in combinations that MLX supports. Invariant: pure.

use std::fmt;
use std::str::FromStr;

use crate::config::Fields;
use crate::error::Result;

/// A quantization mode, by MLX's name.
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

    /// The supported numbers of bits.
    fn bits(self) -> &'static [usize] {
        match self {
            Self::Affine => &[2, 3, 4, 5, 6, 8],
            Self::Mxfp8 => &[8],
            Self::Mxfp4 | Self::Nvfp4 => &[4],
        }
    }

    /// The supported group sizes.
    fn groups(self) -> &'static [usize] {
        match self {
            Self::Affine => &[32, 64, 128],
            Self::Mxfp4 | Self::Mxfp8 => &[32],
            Self::Nvfp4 => &[16],
        }
    }

    /// MLX's defaults of the mode.
    fn defaults(self) -> QuantScheme {
        let (bits, group) = match self {
            Self::Affine => (4, 64),
            other => (other.bits()[0], other.groups()[0]),
        };
        QuantScheme { mode: self, bits, group_size: group }
    }
}

/// The quantization scheme of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantScheme {
    /// The mapping of codes to values.
    pub mode: Mode,
    /// Bits per value.
    pub bits: usize,
    /// The number of adjacent values in a row that share a scale.
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
    pub(super) fn read(fields: &Fields, partial: bool) -> Result<Self> {
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
        if scheme.mode == Mode::Affine && scheme.bits == 1 {
            // Only files have codes of 1 bit. Loading widens them to 2 bits.
            let wide = Self { bits: 2, ..scheme };
            return wide.checked().map(|_| scheme).map_err(|(key, message)| fields.error(key, message));
        }
        scheme.checked().map_err(|(key, message)| fields.error(key, message))
    }

    /// Creates a scheme from explicit settings and MLX's defaults. An error contains the invalid key of config.json and the reason.
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

    /// The number of 32-bit words in a row of `inputs` values; `None` unless the row consists of whole words and groups.
    pub fn words(&self, inputs: usize) -> Option<usize> {
        let fits = inputs.is_multiple_of(self.group_size) && (inputs * self.bits).is_multiple_of(32);
        fits.then_some(inputs * self.bits / 32)
    }

    /// The number of values in a row of `words` 32-bit words.
    pub fn inputs(&self, words: usize) -> usize {
        words * 32 / self.bits
    }

    /// Returns true if each group has a bias; scales and biases are then floats.
    pub fn has_biases(&self) -> bool {
        self.mode == Mode::Affine
    }
}
