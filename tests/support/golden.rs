//! The recorded outputs of the reference, written by `golden/make.py`.

use safetensors::SafeTensors;
use serde::Deserialize;

use crate::golden_folder;

/// Greedy generations of one checkpoint.
#[derive(Deserialize)]
pub struct Golden {
    /// The cases, one for each of three prompts.
    pub cases: Vec<Case>,
}

/// A greedy generation from one prompt in f32 arithmetic.
#[derive(Deserialize)]
pub struct Case {
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// The generated tokens. End tokens do not end the text.
    pub tokens: Vec<u32>,
    /// Their log probabilities.
    pub logprobs: Vec<f32>,
    /// The five likeliest tokens at each position with their log probabilities.
    pub top: Vec<Vec<(u32, f32)>>,
}

/// The logits of every position of a text.
pub struct Logits {
    /// The text.
    pub tokens: Vec<u32>,
    /// `[tokens, vocabulary]`, row-major.
    pub values: Vec<f32>,
    /// The width of a row.
    pub vocabulary: usize,
}

/// The float checkpoints of llama.
pub const MODELS: [&str; 9] = [
    "llama-f32",
    "llama-f16",
    "llama-bf16",
    "llama-rope3-f32",
    "llama-linear-f32",
    "llama-tied-f32",
    "llama-bias-f32",
    "llama-spm-f32",
    "llama-mha-sharded-f32",
];

/// The checkpoints of families other than llama, all in f32.
pub const FAMILIES: [&str; 102] = [
    "afmoe-f32",
    "apertus-f32",
    "arcee-f32",
    "bailing_hybrid-f32",
    "bailing_moe-f32",
    "cohere-f32",
    "cohere2-f32",
    "cohere2_moe-f32",
    "cohere2_moe-layer-f32",
    "cwm-f32",
    "deepseek_v2-f32",
    "deepseek_v3-f32",
    "dots1-f32",
    "ernie4_5-f32",
    "ernie4_5_moe-f32",
    "exaone-f32",
    "exaone4-f32",
    "exaone_moe-f32",
    "falcon_h1-f32",
    "falcon_h1-mlx-f32",
    "falcon_h1-plain-f32",
    "gemma-f32",
    "gemma2-f32",
    "gemma3_text-f32",
    "gemma3n_text-f32",
    "gemma4-f32",
    "gemma4-mlx-f32",
    "gemma4_text-f32",
    "gemma4_unified-f32",
    "glm-f32",
    "glm4-f32",
    "glm4_moe-f32",
    "glm4_moe_lite-f32",
    "gpt_neox-f32",
    "gpt_neox-serial-f32",
    "gpt_oss-f32",
    "granite-f32",
    "granite_swa-f32",
    "granitemoe-f32",
    "granitemoe_swa-f32",
    "granitemoehybrid-f32",
    "granitemoehybrid-dense-f32",
    "granitemoehybrid-mlx-f32",
    "granitemoeshared-f32",
    "helium-f32",
    "hunyuan_v1_dense-f32",
    "hunyuan_v1_moe-f32",
    "hy_v3-f32",
    "hyperclovax-f32",
    "internlm2-f32",
    "internlm3-f32",
    "jais2-f32",
    "kimi_k25-f32",
    "kimi_linear-f32",
    "kimi_linear-mlx-f32",
    "laguna-f32",
    "laguna-element-f32",
    "lfm2-f32",
    "lfm2_moe-f32",
    "lfm3-f32",
    "mamba2-f32",
    "mellum-f32",
    "mimo-f32",
    "minicpm-f32",
    "minicpm3-f32",
    "minimax_m2-f32",
    "ministral-f32",
    "ministral3-f32",
    "mistral-f32",
    "mistral4-f32",
    "mixtral-f32",
    "muse_glimmer-f32",
    "nemotron-f32",
    "nemotron_h-f32",
    "nemotron_h-mlx-f32",
    "olmo-f32",
    "olmo2-f32",
    "olmo3-f32",
    "olmoe-f32",
    "phi-f32",
    "phi3-f32",
    "phi3-long-f32",
    "phimoe-f32",
    "qwen2-f32",
    "qwen2_5_vl-f32",
    "qwen2_moe-f32",
    "qwen2_vl-f32",
    "qwen3-f32",
    "qwen3_5-f32",
    "qwen3_5_moe-f32",
    "qwen3_moe-f32",
    "qwen3_next-f32",
    "qwen3_vl-f32",
    "qwen3_vl_moe-f32",
    "seed_oss-f32",
    "smollm3-f32",
    "solar_open-f32",
    "stablelm-f32",
    "stablelm-parallel-f32",
    "starcoder2-f32",
    "vaultgemma-f32",
    "youtu-f32",
];

/// The mixtures of experts in [`FAMILIES`].
pub const MIXTURES: [&str; 42] = [
    "afmoe-f32",
    "bailing_hybrid-f32",
    "bailing_moe-f32",
    "cohere2_moe-f32",
    "cohere2_moe-layer-f32",
    "deepseek_v2-f32",
    "deepseek_v3-f32",
    "dots1-f32",
    "ernie4_5_moe-f32",
    "exaone_moe-f32",
    "gemma4-f32",
    "gemma4-mlx-f32",
    "glm4_moe-f32",
    "glm4_moe_lite-f32",
    "gpt_oss-f32",
    "granitemoe-f32",
    "granitemoe_swa-f32",
    "granitemoehybrid-f32",
    "granitemoehybrid-mlx-f32",
    "granitemoeshared-f32",
    "hunyuan_v1_moe-f32",
    "hy_v3-f32",
    "kimi_k25-f32",
    "kimi_linear-f32",
    "kimi_linear-mlx-f32",
    "laguna-f32",
    "laguna-element-f32",
    "lfm2_moe-f32",
    "mellum-f32",
    "minimax_m2-f32",
    "mistral4-f32",
    "mixtral-f32",
    "nemotron_h-f32",
    "nemotron_h-mlx-f32",
    "olmoe-f32",
    "phimoe-f32",
    "qwen2_moe-f32",
    "qwen3_5_moe-f32",
    "qwen3_moe-f32",
    "qwen3_next-f32",
    "qwen3_vl_moe-f32",
    "solar_open-f32",
];

/// The quantized checkpoints.
pub const QUANTIZED: [&str; 10] = [
    "llama-q4-f16",
    "llama-q8-bf16",
    "llama-tied-q4-f32",
    "llama-mixed-f32",
    "llama-mxfp4-bf16",
    "llama-mxfp8-f32",
    "llama-nvfp4-f16",
    "qwen3_5-q4-f32",
    "glm4_moe_lite-q4-f32",
    "lfm2_moe-q4-f32",
];

/// Reads `expected/NAME.json`.
///
/// # Panics
/// If the fixture is broken.
pub fn cases(name: &str) -> Golden {
    let path = golden_folder().join("expected").join(format!("{name}.json"));
    let text = std::fs::read_to_string(path).expect("the fixture is in the repository");
    serde_json::from_str(&text).expect("the fixture has this form")
}

/// Reads the logits of `expected/NAME.safetensors`; `widened` selects those computed with weights cast to f32.
///
/// # Panics
/// If the fixture is broken.
pub fn logits(name: &str, widened: bool) -> Logits {
    let path = golden_folder().join("expected").join(format!("{name}.safetensors"));
    let bytes = std::fs::read(path).expect("the fixture is in the repository");
    let file = SafeTensors::deserialize(&bytes).expect("the fixture is a safetensors file");
    let values = if widened {
        file.tensor("logits_f32").or_else(|_| file.tensor("logits"))
    } else {
        file.tensor("logits")
    };
    let (values, tokens) = (values.expect("logits"), file.tensor("tokens").expect("tokens"));
    let words = |bytes: &[u8]| -> Vec<[u8; 4]> { bytes.as_chunks().0.to_vec() };
    Logits {
        tokens: words(tokens.data()).into_iter().map(u32::from_le_bytes).collect(),
        vocabulary: values.shape()[1],
        values: words(values.data()).into_iter().map(f32::from_le_bytes).collect(),
    }
}

/// Returns the largest difference between two sets of rows, relative to the standard deviation of the reference's row.
///
/// # Panics
/// If the number of rows is not the number of positions.
pub fn worst_difference(rows: &[f32], reference: &[f32], vocabulary: usize) -> f32 {
    assert_eq!(rows.len(), reference.len(), "there must be one row per position");
    let row_difference = |(row, expected): (&[f32], &[f32])| {
        let count = expected.len() as f32;
        let mean = expected.iter().sum::<f32>() / count;
        let spread = (expected.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count).sqrt();
        // `max` would drop a NaN.
        let differences = row.iter().zip(expected).map(|(x, y)| (x - y).abs());
        differences.fold(0.0, |worst: f32, x| if x.is_nan() { f32::INFINITY } else { worst.max(x) }) / spread
    };
    rows.chunks(vocabulary).zip(reference.chunks(vocabulary)).map(row_difference).fold(0.0, f32::max)
}
