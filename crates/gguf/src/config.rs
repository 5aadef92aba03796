//! config.json as transformers writes it, from the metadata. Each family has a function that writes it.

mod base;
mod experts;
mod gemma;
mod hybrid;
mod keys;
mod latent;
mod llama;
mod mamba;
mod mixtures;
mod rope;
mod varied;

pub(crate) use gemma::{gemma, gemma2, gemma3, gemma4};
pub(crate) use hybrid::{lfm2, lfm2_moe, qwen3_5, qwen3_5_moe};
pub(crate) use keys::{Floats, Write};
pub(crate) use latent::{deepseek, kimi_linear, minicpm3, mistral4};
pub(crate) use llama::{ernie4_5, granite, llama, minicpm, mistral3, qwen2, qwen3, seed_oss, smollm3};
pub(crate) use mamba::{falcon_h1, granite_hybrid, mamba2, nemotron_h};
pub(crate) use mixtures::{
    afmoe, bailing, dots1, ernie4_5_moe, exaone_moe, glm4_moe, gpt_oss, granite_moe, hunyuan_moe, hy_v3,
    minimax_m2, olmoe, phimoe, qwen2_moe, qwen3_moe,
};
pub(crate) use varied::{
    cohere, cohere2, exaone, exaone4, glm, glm4, hunyuan, nemotron, olmo, olmo2, phi3, stablelm, starcoder2,
};

#[cfg(test)]
mod tests;
