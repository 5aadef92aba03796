//! Model families as data: one function per family reads config.json into a [`DecoderConfig`]. transformers' configuration classes are the
//! reference for names and defaults. docs/adding-a-family.md shows how to add a family.

mod bailing_hybrid;
pub(super) mod base;
mod classic;
mod cohere;
mod gated_mixtures;
mod gemma;
mod gemma3n;
mod gemma4;
mod granite;
mod hybrid;
mod kimi_linear;
mod laguna;
mod latent;
mod layers;
mod lfm3;
mod llama;
mod mamba;
mod mixtures;
mod muse;
mod nemotron_h;
mod nested;
mod olmo;
mod qwen;
mod routed;
mod varied;

use super::attention::AttentionConfig;
use super::config::DecoderConfig;
use crate::config::Fields;
use crate::error::Result;

/// Reads the config of a family.
type Read = fn(&Fields) -> Result<DecoderConfig>;

/// The families: `model_type` of config.json, its aliases, and the function that reads the config.
const FAMILIES: [(&[&str], Read); 95] = [
    (&["afmoe"], gated_mixtures::afmoe),
    (&["apertus"], varied::apertus),
    (&["arcee"], classic::arcee),
    (&["bailing_hybrid"], bailing_hybrid::bailing_hybrid),
    (&["bailing_moe"], varied::bailing_moe),
    (&["cohere"], cohere::cohere),
    (&["cohere2"], cohere::cohere2),
    (&["cohere2_moe"], cohere::cohere2_moe),
    (&["cwm"], llama::cwm),
    (&["deepseek_v2"], latent::deepseek_v2),
    (&["deepseek_v3", "kimi_k2", "joyai_llm_flash"], latent::deepseek_v3),
    (&["dots1"], routed::dots1),
    (&["ernie4_5"], llama::ernie4_5),
    (&["ernie4_5_moe"], routed::ernie4_5_moe),
    (&["exaone"], varied::exaone),
    (&["exaone4"], olmo::exaone4),
    (&["exaone_moe"], routed::exaone_moe),
    (&["falcon_h1"], mamba::falcon_h1),
    (&["gemma"], gemma::gemma),
    (&["gemma2"], gemma::gemma2),
    (&["gemma3"], gemma::gemma3),
    (&["gemma3_text"], gemma::gemma3_text),
    (&["gemma3n"], gemma3n::gemma3n),
    (&["gemma3n_text"], gemma3n::gemma3n_text),
    (&["gemma4"], gemma4::gemma4),
    (&["gemma4_text"], gemma4::gemma4_text),
    (&["gemma4_unified"], gemma4::gemma4_unified),
    (&["glm"], varied::glm),
    (&["glm4"], varied::glm4),
    (&["glm4_moe"], routed::glm4_moe),
    (&["glm4_moe_lite"], latent::glm4_moe_lite),
    (&["gpt_neox"], classic::gpt_neox),
    (&["gpt_oss"], mixtures::gpt_oss),
    (&["granite"], llama::granite),
    (&["granite_swa"], granite::granite_swa),
    (&["granitemoe", "granitemoeshared"], mixtures::granitemoe),
    (&["granitemoe_swa"], granite::granitemoe_swa),
    (&["granitemoehybrid"], mamba::granitemoehybrid),
    (&["helium"], llama::helium),
    (&["hunyuan_v1_dense"], qwen::hunyuan_v1_dense),
    (&["hunyuan_v1_moe"], mixtures::hunyuan_v1_moe),
    (&["hy_v3"], routed::hy_v3),
    (&["hyperclovax"], granite::hyperclovax),
    (&["internlm2"], varied::internlm2),
    (&["internlm3"], llama::internlm3),
    (&["iquestcoder"], llama::iquestcoder),
    (&["jais2"], classic::jais2),
    (&["kimi_k25", "kimi_vl"], nested::kimi_k25),
    (&["kimi_linear"], kimi_linear::kimi_linear),
    (&["laguna"], laguna::laguna),
    (&["lfm2"], hybrid::lfm2),
    (&["lfm2_moe"], hybrid::lfm2_moe),
    (&["lfm2_vl"], nested::lfm2_vl),
    (&["lfm3"], lfm3::lfm3),
    (&["llama", "xverse"], llama::llama),
    (&["mamba2"], mamba::mamba2),
    (&["mellum"], laguna::mellum),
    (&["mimo"], qwen::mimo),
    (&["minicpm"], llama::minicpm),
    (&["minicpm3"], latent::minicpm3),
    (&["minimax_m2", "minimax"], routed::minimax_m2),
    (&["ministral3"], llama::ministral3),
    (&["mistral", "ministral"], llama::mistral),
    (&["mistral3", "llava"], nested::mistral3),
    (&["mistral4"], latent::mistral4),
    (&["mixtral"], mixtures::mixtral),
    (&["muse_glimmer"], muse::muse_glimmer),
    (&["nemotron"], classic::nemotron),
    (&["nemotron_h"], nemotron_h::nemotron_h),
    (&["olmo"], olmo::olmo),
    (&["olmo2"], olmo::olmo2),
    (&["olmo3"], olmo::olmo3),
    (&["olmoe"], mixtures::olmoe),
    (&["phi"], classic::phi),
    (&["phi3"], varied::phi3),
    (&["phimoe"], mixtures::phimoe),
    (&["prism_hadamard_qwen35"], hybrid::bonsai),
    (&["qwen2"], qwen::qwen2),
    (&["qwen2_moe"], mixtures::qwen2_moe),
    (&["qwen2_vl", "qwen2_5_vl"], qwen::qwen2_vl),
    (&["qwen3"], qwen::qwen3),
    (&["qwen3_5", "qwen3_5_text"], hybrid::qwen3_5),
    (&["qwen3_5_moe", "qwen3_5_moe_text"], hybrid::qwen3_5_moe),
    (&["qwen3_asr"], qwen::qwen3_asr),
    (&["qwen3_moe"], mixtures::qwen3_moe),
    (&["qwen3_next"], hybrid::qwen3_next),
    (&["qwen3_vl"], qwen::qwen3_vl),
    (&["qwen3_vl_moe"], mixtures::qwen3_vl_moe),
    (&["seed_oss"], llama::seed_oss),
    (&["smollm3"], llama::smollm3),
    (&["solar_open"], routed::solar_open),
    (&["stablelm"], varied::stablelm),
    (&["starcoder2"], varied::starcoder2),
    (&["vaultgemma"], gemma::vaultgemma),
    (&["youtu", "youtu_llm"], latent::youtu),
];

/// Returns the names of all supported families.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|(names, _)| names.iter().copied())
}

/// Reads the decoder config in config.json, and the name of its family.
pub fn read(fields: &Fields) -> Result<(String, DecoderConfig)> {
    let family =
        fields.optional_text("model_type")?.ok_or_else(|| fields.error("model_type", "is missing"))?;
    let Some((_, read)) = FAMILIES.iter().find(|(names, _)| names.contains(&family)) else {
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(
            fields.error("model_type", format_args!("{family:?} is not supported; supported are {known}"))
        );
    };
    expect_causal(fields)?;
    if let Some(text) = fields.section("text_config")? {
        expect_causal(&text)?;
    }
    let config = read(fields)?;
    check(fields, &config)?;
    Ok((family.to_owned(), config))
}

/// Rejects a model with bidirectional attention. Some published embedding models are decoders with this change.
fn expect_causal(fields: &Fields) -> Result<()> {
    if fields.is_false("is_causal") {
        return Err(fields.error("is_causal", "is false; bidirectional attention is not supported"));
    }
    Ok(())
}

/// Checks relations between keys that hold for all families.
fn check(fields: &Fields, config: &DecoderConfig) -> Result<()> {
    check_heads(fields, &config.attention)?;
    config
        .layers
        .iter()
        .filter_map(|layer| layer.attention.as_deref())
        .try_for_each(|it| check_heads(fields, it))?;
    if let Some(experts) = &config.experts
        && experts.num_experts_per_tok > experts.num_experts
    {
        let message =
            format_args!("is {}; there are {} experts", experts.num_experts_per_tok, experts.num_experts);
        return Err(fields.error("num_experts_per_tok", message));
    }
    Ok(())
}

/// Checks the heads of an attention block.
fn check_heads(fields: &Fields, attention: &AttentionConfig) -> Result<()> {
    let AttentionConfig { num_heads, num_kv_heads, head_dim, .. } = *attention;
    if !num_heads.is_multiple_of(num_kv_heads) {
        let message = format_args!("is {num_kv_heads}; it must divide num_attention_heads");
        return Err(fields.error("num_key_value_heads", message));
    }
    // Widths are products of two keys. Together they must fit an i32, the type of array dimensions.
    let heads = num_heads.saturating_add(num_kv_heads.saturating_mul(2));
    if heads.saturating_mul(head_dim) > i32::MAX as usize {
        return Err(fields.error("head_dim", "times the number of heads is too large"));
    }
    Ok(())
}
