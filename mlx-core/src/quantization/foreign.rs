//! The quantization settings that tools other than MLX's write. Invariant: pure; the tensors decide which modules are quantized.

mod compressed_tensors;
mod settings;
mod transposed;

use crate::config::Fields;
use crate::error::{Error, Result};
pub(crate) use settings::{Foreign, Integers, Tool};
use settings::{USUAL_BLOCK, block};

/// The sections that can hold the settings.
const SECTIONS: [&str; 2] = ["quantization_config", "compression_config"];

/// ModelOpt's own file beside config.json.
const MODELOPT_FILE: &str = "hf_quant_config.json";

const HELP: &str = "supported are the formats of MLX, compressed-tensors, fp8, fbgemm_fp8, modelopt, awq and gptq; use a version from \
                    mlx-community on the Hugging Face Hub, or the original before quantization";

/// Reads the settings of another tool, if config.json or ModelOpt's file has them. An error names an unsupported method.
pub(super) fn read(fields: &Fields) -> Result<Option<Foreign>> {
    let text = fields.section("text_config")?;
    let parents = SECTIONS.map(|key| (fields, key)).into_iter();
    let parents = parents.chain(text.iter().flat_map(|text| SECTIONS.map(|key| (text, key))));
    for (parent, key) in parents {
        let Some(section) = parent.section(key)? else { continue };
        match section.optional_text("quant_method")? {
            // The names of its expert tensors show that they are quantized.
            Some("mxfp4") if fields.optional_text("model_type")? == Some("gpt_oss") => {}
            Some(method) => return of_method(&section, method).map(Some),
            // Older MLX tools wrote their settings under this key.
            None if section.has("bits") && key == "quantization_config" => {}
            None if section.has("quant_algo") => return of_method(&section, "modelopt").map(Some),
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
        Some(section) => of_method(&section, "modelopt").map(Some),
        None => Err(Error::file(modelopt.path(), "has no quantization section of NVIDIA's ModelOpt")),
    }
}

fn of_method(section: &Fields, method: &str) -> Result<Foreign> {
    match method {
        "compressed-tensors" => compressed_tensors::read(section),
        "fp8" | "fbgemm_fp8" => fp8(section),
        "modelopt" | "modelopt_fp4" => modelopt(section),
        "awq" => transposed::awq(section),
        "gptq" => transposed::gptq(section),
        _ => Err(section.error("quant_method", format_args!("is {method:?}; {HELP}"))),
    }
}

/// Reads the settings of transformers' FP8 checkpoints.
fn fp8(section: &Fields) -> Result<Foreign> {
    if let Some(fmt) = section.optional_text("fmt")?.filter(|fmt| *fmt != "e4m3") {
        return Err(section.error("fmt", format_args!("is {fmt:?}; supported is \"e4m3\"")));
    }
    // GPTQModel's files have the same names, but their scales divide.
    if let Some(semantics) = section.optional_text("weight_scale_semantics")? {
        let message = format_args!("is {semantics:?}; supported are scales that multiply, without this key");
        return Err(section.error("weight_scale_semantics", message));
    }
    let block = block(section, "weight_block_size")?.unwrap_or(USUAL_BLOCK);
    Ok(Foreign { block, ..Foreign::of(Tool::Fp8) })
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
