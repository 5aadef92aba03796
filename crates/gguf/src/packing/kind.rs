//! The packings of MLX.

/// The packing of a quantized tensor in MLX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// The mode.
    pub mode: Mode,
    /// Bits of a code.
    pub bits: usize,
    /// Elements of a group.
    pub group_size: usize,
    /// The type of scales and biases.
    pub(crate) scales: ScaleType,
}

/// A mode of MLX's quantization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A scale and a bias per group.
    Affine,
    /// 4-bit floats and a power of two per 32.
    Mxfp4,
    /// 4-bit floats and an 8-bit float per 16.
    Nvfp4,
}

impl Mode {
    /// The name in config.json.
    pub fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
        }
    }
}

/// The type of scales and biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleType {
    /// 16-bit floats.
    F16,
    /// 32-bit floats.
    F32,
    /// Bytes.
    U8,
}

impl ScaleType {
    fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
            Self::U8 => 1,
        }
    }
}

/// A tensor of a quantized matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The codes.
    Weight,
    /// The scales.
    Scales,
    /// The biases of affine mode.
    Biases,
}

impl Packing {
    pub(super) const fn affine(bits: usize, group_size: usize, scales: ScaleType) -> Self {
        Self { mode: Mode::Affine, bits, group_size, scales }
    }

    /// The tensors of a matrix.
    pub(crate) fn parts(self) -> &'static [Part] {
        match self.mode {
            Mode::Affine => &[Part::Weight, Part::Scales, Part::Biases],
            Mode::Mxfp4 | Mode::Nvfp4 => &[Part::Weight, Part::Scales],
        }
    }

    /// Bytes that `elements` neighbours take in a tensor of the matrix.
    pub(super) fn part_bytes(self, part: Part, elements: usize) -> usize {
        match part {
            Part::Weight => elements * self.bits / 8,
            Part::Scales | Part::Biases => elements / self.group_size * self.scales.bytes(),
        }
    }
}
