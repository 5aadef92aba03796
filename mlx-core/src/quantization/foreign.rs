//! The quantization settings that tools other than MLX's write. Invariant: pure; the tensors decide which modules are quantized.

mod compressed_tensors;
mod transposed;

use crate::config::Fields;
use crate::error::{Error, Result};

/// The sections that can hold the settings.
const SECTIONS: [&str; 2] = ["quantization_config", "compression_config"];

/// ModelOpt's own file beside config.json.
const MODELOPT_FILE: &str = "hf_quant_config.json";

/// The sides of a block of FP8 weights with one scale, if the settings have none.
const USUAL_BLOCK: [usize; 2] = [128, 128];

const HELP: &str = "supported are the formats of MLX, compressed-tensors, fp8, fbgemm_fp8, modelopt, awq and gptq; use a version from \
                    mlx-community on the Hugging Face Hub, or the original before quantization";

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
    /// True if the scales of blocks are powers of two.
    pub(crate) powers_of_two: bool,
}

impl Foreign {
    fn of(tool: Tool) -> Self {
        Self { tool, integers: Vec::new(), block: USUAL_BLOCK, powers_of_two: false }
    }

    /// Reads the settings of another tool, if config.json or ModelOpt's file has them. An error names an unsupported method.
    pub(super) fn read(fields: &Fields) -> Result<Option<Self>> {
        let text = fields.section("text_config")?;
        let parents = SECTIONS.map(|key| (fields, key)).into_iter();
        let parents = parents.chain(text.iter().flat_map(|text| SECTIONS.map(|key| (text, key))));
        for (parent, key) in parents {
            let Some(section) = parent.section(key)? else { continue };
            match section.optional_text("quant_method")? {
                // The names of its expert tensors show that they are quantized.
                Some("mxfp4") if fields.optional_text("model_type")? == Some("gpt_oss") => {}
                Some(method) => return Self::of_method(&section, method).map(Some),
                // Older MLX tools wrote their settings under this key.
                None if section.has("bits") && key == "quantization_config" => {}
                None if section.has("quant_algo") => return Self::of_method(&section, "modelopt").map(Some),
                None => return Err(parent.error(key, format_args!("has no quant_method; {HELP}"))),
            }
        }
        if fields.has("quantization_config") {
            return Ok(None);
        }
        let Some(modelopt) = Fields::read_optional(&fields.path().with_file_name(MODELOPT_FILE))? else {
            return Ok(None);
        };
        match modelopt.section("quantization")? {
            Some(section) => Self::of_method(&section, "modelopt").map(Some),
            None => Err(Error::file(modelopt.path(), "has no quantization section of NVIDIA's ModelOpt")),
        }
    }

    fn of_method(section: &Fields, method: &str) -> Result<Self> {
        match method {
            "compressed-tensors" => compressed_tensors::read(section),
            "fp8" | "fbgemm_fp8" => fp8(section),
            "modelopt" | "modelopt_fp4" => modelopt(section),
            "awq" => transposed::awq(section),
            "gptq" => transposed::gptq(section),
            _ => Err(section.error("quant_method", format_args!("is {method:?}; {HELP}"))),
        }
    }
}

/// Reads the settings of transformers' FP8 checkpoints.
fn fp8(section: &Fields) -> Result<Foreign> {
    if let Some(fmt) = section.optional_text("fmt")?.filter(|fmt| *fmt != "e4m3") {
        return Err(section.error("fmt", format_args!("is {fmt:?}; supported is \"e4m3\"")));
    }
    let powers_of_two = section.optional_text("scale_fmt")? == Some("ue8m0");
    let block = block(section, "weight_block_size")?.unwrap_or(USUAL_BLOCK);
    Ok(Foreign { block, powers_of_two, ..Foreign::of(Tool::Fp8) })
}

/// Reads the settings of ModelOpt, from its own file or config.json.
fn modelopt(section: &Fields) -> Result<Foreign> {
    const SUPPORTED: [&str; 6] =
        ["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "MXFP8", "MIXED_PRECISION"];
    let nested = section.section("quantization")?;
    let section = nested.as_ref().unwrap_or(section);
    match section.optional_text("quant_algo")? {
        Some(algorithm) if SUPPORTED.contains(&algorithm) => Ok(Foreign::of(Tool::ModelOpt)),
        Some(algorithm) => {
            let supported = SUPPORTED.join(", ");
            Err(section.error("quant_algo", format_args!("is {algorithm:?}; supported are {supported}")))
        }
        None => Err(section.error("quant_algo", "is missing")),
    }
}

/// Reads the sides of blocks, rows first.
fn block(section: &Fields, key: &str) -> Result<Option<[usize; 2]>> {
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
