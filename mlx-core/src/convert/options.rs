//! The settings of a conversion. Invariant: pure.

use std::path::PathBuf;
use std::str::FromStr;

use safetensors::Dtype;

use super::rule::Rule;
use crate::quantization::{Mode, QuantScheme};

/// The settings of a conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertOptions {
    /// The scheme of matrices; `None` keeps them unchanged.
    pub scheme: Option<QuantScheme>,
    /// Rules for single modules. The first rule that matches applies.
    pub rules: Vec<Rule>,
    /// The bits of the embedding and the head, unless a rule matches them.
    pub embedding_bits: EmbeddingBits,
    /// The folder of an adapter to merge into the weights.
    pub adapter: Option<PathBuf>,
    /// The type of the remaining floats; `None` keeps their own.
    pub dtype: Option<Dtype>,
    /// The maximum bytes of tensors per file.
    pub shard_bytes: u64,
    /// True to allow writing into a folder that is not empty.
    pub force: bool,
}

/// The default bits of the embedding and the head of a small model.
const USUAL_BITS: usize = 8;

/// Models with fewer parameters are small. The embedding is a large share of a small model and loses much quality at 4 bits.
const SMALL: u64 = 4_000_000_000;

/// The bits of the token embedding and the head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EmbeddingBits {
    /// 8 bits in models of fewer than 4 billion parameters, unless the other matrices have more; otherwise as many as those.
    #[default]
    Usual,
    /// As many as the other matrices, as in mlx-lm.
    Same,
    /// This many bits, in affine mode.
    Bits(usize),
}

impl EmbeddingBits {
    /// Returns the scheme of the embedding and the head. `others` is the scheme of the other matrices.
    pub(super) fn scheme(self, parameters: u64, others: QuantScheme) -> QuantScheme {
        let bits = match self {
            Self::Usual if parameters < SMALL => USUAL_BITS.max(others.bits),
            Self::Usual | Self::Same => others.bits,
            Self::Bits(bits) => bits,
        };
        if bits == others.bits {
            return others;
        }
        let group_size = if others.mode == Mode::Affine { others.group_size } else { 64 };
        QuantScheme { mode: Mode::Affine, bits, group_size }
    }
}

impl FromStr for EmbeddingBits {
    type Err = String;

    /// Parses a number of bits, or `same`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "same" {
            return Ok(Self::Same);
        }
        let bits = text.parse().map_err(|_| format!("{text:?} is neither a number of bits nor same"))?;
        let scheme = QuantScheme::new(Mode::Affine, Some(bits), None);
        scheme.map(|_| Self::Bits(bits)).map_err(|(_, message)| message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_of_large_models_are_like_other_matrices() {
        let scheme = |bits| QuantScheme { mode: Mode::Affine, bits, group_size: 32 };
        let usual = |parameters, others| EmbeddingBits::Usual.scheme(parameters, others);
        assert_eq!(usual(SMALL, scheme(4)), scheme(4));
        assert_eq!(usual(SMALL - 1, scheme(4)), scheme(8));
        assert_eq!(usual(1, scheme(8)), scheme(8));
        assert_eq!(usual(1, QuantScheme::MXFP4), QuantScheme { group_size: 64, ..scheme(8) });
        assert_eq!(EmbeddingBits::Bits(6).scheme(SMALL, scheme(4)), scheme(6));
        let read = ["same", "6", "7", "many"].map(|text| text.parse::<EmbeddingBits>().ok());
        assert_eq!(read, [Some(EmbeddingBits::Same), Some(EmbeddingBits::Bits(6)), None, None]);
    }
}
