//! The settings of a checkpoint that a tool other than MLX's quantized. Invariant: pure.

use crate::config::Fields;
use crate::error::Result;

/// The sides of a block of FP8 weights with one scale, if the settings have none.
pub(super) const USUAL_BLOCK: [usize; 2] = [128, 128];

/// The tool that quantized a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    /// llm-compressor.
    CompressedTensors,
    /// transformers' `fp8` and `fbgemm_fp8`.
    Fp8,
    /// NVIDIA's ModelOpt.
    ModelOpt,
    /// AutoAWQ.
    Awq,
    /// AutoGPTQ and GPTQModel. `zero_offset` is subtracted from stored zero points.
    Gptq { zero_offset: u8 },
}

/// A format of integer codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Integers {
    pub(crate) bits: usize,
    /// The number of adjacent inputs that share a scale; `None` for one scale per row.
    pub(crate) group: Option<usize>,
}

/// The quantization settings of a tool other than MLX's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Foreign {
    pub(crate) tool: Tool,
    /// The formats of integer codes in the checkpoint.
    pub(crate) integers: Vec<Integers>,
    /// Rows and columns of a block of FP8 weights that shares a scale.
    pub(crate) block: [usize; 2],
}

impl Foreign {
    /// Creates the settings of a tool without integer formats.
    pub(super) fn of(tool: Tool) -> Self {
        Self { tool, integers: Vec::new(), block: USUAL_BLOCK }
    }
}

/// Reads the sides of blocks, rows first.
pub(super) fn block(section: &Fields, key: &str) -> Result<Option<[usize; 2]>> {
    if !section.has(key) {
        return Ok(None);
    }
    let sides = section.numbers(key)?;
    match sides[..] {
        [rows, columns]
            if [rows, columns].iter().all(|it| it.fract() == 0.0 && (1.0..65537.0).contains(it)) =>
        {
            Ok(Some([rows as usize, columns as usize]))
        }
        _ => {
            Err(section
                .error(key, format_args!("is {sides:?}; it must be two whole numbers from 1 to 65536")))
        }
    }
}
