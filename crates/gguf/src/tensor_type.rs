//! The types of stored tensors: numbers, names and sizes.

/// The type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit floats with the exponent of f32.
    BF16,
    /// 32 codes of 4 bits and a scale.
    Q4_0,
    /// 32 codes of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 codes of 5 bits and a scale.
    Q5_0,
    /// 32 codes of 5 bits, a scale and a minimum.
    Q5_1,
    /// 32 codes of 8 bits and a scale.
    Q8_0,
    /// 256 codes of 2 bits; a scale and a minimum per 16.
    Q2K,
    /// 256 codes of 3 bits; a scale per 16.
    Q3K,
    /// 256 codes of 4 bits; a scale and a minimum per 32.
    Q4K,
    /// 256 codes of 5 bits; a scale and a minimum per 32.
    Q5K,
    /// 256 codes of 6 bits; a scale per 16.
    Q6K,
    /// 32 indexes into a table of 16 numbers, and a scale.
    Iq4Nl,
    /// 256 indexes into a table of 16 numbers; a scale per 32.
    Iq4Xs,
    /// 256 codes of three values, five codes in a byte, and a scale.
    Tq1_0,
    /// 256 codes of three values, 2 bits each, and a scale.
    Tq2_0,
    /// 32 4-bit floats and a power of two as the scale.
    Mxfp4,
    /// 64 4-bit floats; an 8-bit float as the scale per 16.
    Nvfp4,
    /// 128 signs and a scale.
    Q1_0,
    /// 64 codes of 2 bits and a scale.
    Q2_0,
    /// A type that MLX's formats cannot hold.
    Other(Other),
}

/// A type that is listed, but not converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Other {
    name: &'static str,
    elements: usize,
    bytes: usize,
}

impl TensorType {
    /// Returns the type with the number of the file format.
    pub fn of(number: u32) -> Option<Self> {
        let other = |name, elements, bytes| Self::Other(Other { name, elements, bytes });
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            9 => other("Q8_1", 32, 40),
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            15 => other("Q8_K", 256, 292),
            16 => other("IQ2_XXS", 256, 66),
            17 => other("IQ2_XS", 256, 74),
            18 => other("IQ3_XXS", 256, 98),
            19 => other("IQ1_S", 256, 50),
            20 => Self::Iq4Nl,
            21 => other("IQ3_S", 256, 110),
            22 => other("IQ2_S", 256, 82),
            23 => Self::Iq4Xs,
            24 => other("I8", 1, 1),
            25 => other("I16", 1, 2),
            26 => other("I32", 1, 4),
            27 => other("I64", 1, 8),
            28 => other("F64", 1, 8),
            29 => other("IQ1_M", 256, 56),
            30 => Self::BF16,
            34 => Self::Tq1_0,
            35 => Self::Tq2_0,
            39 => Self::Mxfp4,
            40 => Self::Nvfp4,
            41 => Self::Q1_0,
            42 => Self::Q2_0,
            _ => return None,
        })
    }

    /// The name that llama.cpp uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Tq1_0 => "TQ1_0",
            Self::Tq2_0 => "TQ2_0",
            Self::Mxfp4 => "MXFP4",
            Self::Nvfp4 => "NVFP4",
            Self::Q1_0 => "Q1_0",
            Self::Q2_0 => "Q2_0",
            Self::Other(other) => other.name,
        }
    }

    /// The number of elements in a block. Rows consist of whole blocks.
    pub fn block_elements(self) -> usize {
        self.block().0
    }

    /// The number of bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.block().1
    }

    fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Q4_0 | Self::Iq4Nl => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q2K => (256, 84),
            Self::Q3K => (256, 110),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Iq4Xs => (256, 136),
            Self::Tq1_0 => (256, 54),
            Self::Tq2_0 => (256, 66),
            Self::Mxfp4 => (32, 17),
            Self::Nvfp4 => (64, 36),
            Self::Q1_0 => (128, 18),
            Self::Q2_0 => (64, 18),
            Self::Other(other) => (other.elements, other.bytes),
        }
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}
