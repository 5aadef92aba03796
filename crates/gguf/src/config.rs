//! config.json as transformers writes it, from the metadata.

mod base;
mod experts;
mod gemma;
mod hybrid;
mod latent;
mod llama;
mod mamba;
mod mixtures;
mod rope;
mod varied;

use serde_json::{Map, Value};

use crate::error::Result;
use crate::family::Family;
use crate::metadata::Metadata;
use crate::model::{Model, Stored};

pub(crate) use gemma::{gemma, gemma2, gemma3, gemma4};
pub(crate) use hybrid::{lfm2, lfm2_moe, qwen3_5, qwen3_5_moe};
pub(crate) use latent::{deepseek, kimi_linear, minicpm3, mistral4};
pub(crate) use llama::{ernie4_5, granite, llama, minicpm, mistral3, qwen2, qwen3, seed_oss, smollm3};
pub(crate) use mamba::{falcon_h1, granite_hybrid, mamba2, nemotron_h};
pub(crate) use mixtures::{
    afmoe, bailing, dots1, ernie4_5_moe, exaone_moe, glm4_moe, gpt_oss, granite_moe, hunyuan_moe, hy_v3,
    minimax_m2, olmoe, phimoe, qwen2_moe, qwen3_moe,
};
pub(crate) use varied::{
    cohere, cohere2, exaone, exaone4, glm, glm4, hunyuan, olmo2, phi3, stablelm, starcoder2,
};

/// Reads the numbers of the tensor with this index.
pub(crate) type Floats<'a> = &'a dyn Fn(usize) -> Result<Vec<f32>>;

/// Writes the config of a family.
pub(crate) type Write = fn(&Model, Floats) -> Result<Map<String, Value>>;

/// Returns the config.json that transformers would have for the model. `floats` is called for the few tensors with factors of rope.
///
/// # Errors
///
/// An architecture that is not supported, and keys that are missing or cannot be used.
pub(crate) fn config(metadata: &Metadata, tensors: &[Stored], floats: Floats) -> Result<Value> {
    let family = Family::of(metadata)?;
    let model = Model::of(metadata, tensors)?;
    Ok(Value::Object((family.write)(&model, floats)?))
}

#[cfg(test)]
mod tests;
