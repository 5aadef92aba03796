//! Codes of 1 bit in MLX's packing. MLX has no products for them, so loading widens them to 2 bits. The numbers stay equal bit for bit.

use std::sync::Arc;

use safetensors::Dtype;

use super::computed::Rows;
use super::operand::Operand;
use super::rewriter::Rewriter;
use crate::error::Result;
use crate::quantization::QuantizationConfig;
use crate::weights::checkpoint::Checkpoint;

/// The format in the files, for reports.
const ORIGIN: &str = "1 bit";

/// Widens the codes of all modules of 1 bit. Returns the settings of the result.
pub(super) fn widen(
    checkpoint: &mut Checkpoint,
    quantization: QuantizationConfig,
) -> Result<QuantizationConfig> {
    let scaled = |module: &str| checkpoint.has(&format!("{module}.scales"));
    let modules = checkpoint.entries().keys().filter_map(|name| name.strip_suffix(".weight"));
    let is_narrow =
        |module: &&str| quantization.of(module, scaled(module)).is_some_and(|scheme| scheme.bits == 1);
    let modules: Vec<String> = modules.filter(is_narrow).map(str::to_owned).collect();
    let mut rewriter = Rewriter::new(checkpoint);
    for module in modules {
        let words = rewriter.take(&module, "weight")?;
        words.expect_type(&[Dtype::U32])?;
        let mut shape = words.shape().to_vec();
        let Some(width) = shape.last_mut().filter(|width| **width > 0) else {
            return Err(words.error("has no rows of words"));
        };
        let narrow = *width * 4;
        *width *= 2;
        let computed = Widened { words: Arc::clone(&words), narrow };
        rewriter.put(
            &format!("{module}.weight"),
            (Dtype::U32, shape),
            computed,
            &words,
            words.entry.file_bytes,
        );
        for part in ["weight", "scales", "biases"] {
            rewriter.set_origin(&format!("{module}.{part}"), ORIGIN);
        }
    }
    Ok(quantization.widened())
}

/// Rows with twice as many bits per code.
#[derive(Debug)]
struct Widened {
    words: Arc<Operand>,
    /// Bytes of a row in the file.
    narrow: usize,
}

impl Rows for Widened {
    fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let codes = self.words.bytes(first * self.narrow, bytes.len() / 2)?;
        for (to, from) in bytes.chunks_exact_mut(2).zip(codes) {
            to.copy_from_slice(&spread(from).to_le_bytes());
        }
        Ok(())
    }
}

/// Moves bit `n` to bit `2 n`.
fn spread(byte: u8) -> u16 {
    let bits = u16::from(byte);
    let bits = (bits | bits << 4) & 0x0f0f;
    let bits = (bits | bits << 2) & 0x3333;
    (bits | bits << 1) & 0x5555
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn each_bit_becomes_a_code_of_two_bits() {
        for byte in 0..=u8::MAX {
            for bit in 0..8 {
                assert_eq!(spread(byte) >> (2 * bit) & 3, u16::from(byte >> bit & 1));
            }
        }
    }
}
