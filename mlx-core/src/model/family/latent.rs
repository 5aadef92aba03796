//! Families with latent attention: DeepSeek, and families that adopted it.

use serde_json::json;

use super::base::{self, Defaults, LLAMA, flag, positive};
use super::mixtures::read;
use super::routed;
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::AttentionTemperatureConfig;
use crate::model::config::DecoderConfig;
use crate::model::head::LogitScale;
use crate::model::latent_attention::LatentConfig;
use crate::model::mixer::MixerKind;
use crate::model::moe::{ExpertGroups, GroupScore, MoeConfig, RoutingConfig, SharedExpertConfig};

/// The defaults of latent attention for keys that config.json lacks.
#[derive(Clone, Copy)]
pub(super) struct LatentDefaults {
    pub(super) q_lora_rank: usize,
    pub(super) kv_lora_rank: usize,
    pub(super) qk_nope_head_dim: usize,
    pub(super) qk_rope_head_dim: usize,
    pub(super) v_head_dim: usize,
    pub(super) interleaved: bool,
    pub(super) max_position_embeddings: usize,
    pub(super) eps: f64,
}

pub(super) const DEEPSEEK: LatentDefaults = LatentDefaults {
    q_lora_rank: 1536,
    kv_lora_rank: 512,
    qk_nope_head_dim: 128,
    qk_rope_head_dim: 64,
    v_head_dim: 128,
    interleaved: true,
    max_position_embeddings: 4096,
    eps: 1e-6,
};

/// DeepSeek-V3, and Kimi K2.
pub(super) fn deepseek_v3(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields
        .with_default("n_group", 8.into())
        .with_default("topk_group", 4.into())
        .with_default("routed_scaling_factor", 2.5.into())
        .with_default("intermediate_size", 18_432.into());
    let usual = routed::RoutingDefaults {
        num_experts: 256,
        num_experts_per_tok: 8,
        moe_intermediate_size: 2048,
        n_shared_experts: 1,
        first_k_dense_replace: 3,
        norm_topk_prob: true,
    };
    routed::corrected(fields, decoder(fields, &DEEPSEEK)?, &usual)
}

/// GLM 4.7 Flash.
pub(super) fn glm4_moe_lite(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields
        .with_default("n_group", 1.into())
        .with_default("topk_group", 1.into())
        .with_default("routed_scaling_factor", 1.8.into())
        .with_default("intermediate_size", 10_240.into());
    let latent = LatentDefaults {
        q_lora_rank: 768,
        qk_nope_head_dim: 192,
        v_head_dim: 256,
        max_position_embeddings: 202_752,
        eps: 1e-5,
        ..DEEPSEEK
    };
    let usual = routed::RoutingDefaults {
        num_experts: 64,
        num_experts_per_tok: 4,
        moe_intermediate_size: 1536,
        n_shared_experts: 1,
        first_k_dense_replace: 1,
        norm_topk_prob: true,
    };
    routed::corrected(fields, decoder(fields, &latent)?, &usual)
}

/// DeepSeek-V2: a softmax chooses the experts. `topk_method` may limit them to the groups with the best experts.
pub(super) fn deepseek_v2(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields.with_default("intermediate_size", 11_008.into());
    let config = decoder(fields, &LatentDefaults { max_position_embeddings: 2048, ..DEEPSEEK })?;
    let score = match fields.optional_text("topk_method")?.unwrap_or("greedy") {
        "greedy" => None,
        "group_limited_greedy" => Some(GroupScore::Best),
        other => {
            let message =
                format_args!("{other:?} is not supported; supported are greedy and group_limited_greedy");
            return Err(fields.error("topk_method", message));
        }
    };
    let usual = routed::RoutingDefaults {
        num_experts: 64,
        num_experts_per_tok: 1,
        moe_intermediate_size: 1407,
        n_shared_experts: 2,
        first_k_dense_replace: 0,
        norm_topk_prob: false,
    };
    by_softmax(fields, config, &usual, score, false)
}

/// Mistral 4: queries are scaled by a factor that grows with their position.
pub(super) fn mistral4(fields: &Fields) -> Result<DecoderConfig> {
    let usual = json!({
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
    });
    let fields = &base::with_default_rope(fields, usual).with_default("intermediate_size", 12_288.into());
    let latent = LatentDefaults {
        q_lora_rank: 1024,
        kv_lora_rank: 256,
        qk_nope_head_dim: 64,
        max_position_embeddings: 1_048_576,
        ..DEEPSEEK
    };
    let usual = routed::RoutingDefaults {
        num_experts: 128,
        num_experts_per_tok: 4,
        moe_intermediate_size: 2048,
        n_shared_experts: 1,
        first_k_dense_replace: 0,
        norm_topk_prob: true,
    };
    by_softmax(fields, decoder(fields, &latent)?, &usual, Some(GroupScore::BestTwo), true)
}

/// MiniCPM 3: a dense decoder with latent attention and MiniCPM's factors.
pub(super) fn minicpm3(fields: &Fields) -> Result<DecoderConfig> {
    let value = fields.size("hidden_size")? / fields.size("num_attention_heads")?.max(1);
    let usual = LatentDefaults {
        q_lora_rank: 768,
        kv_lora_rank: 256,
        qk_nope_head_dim: 64,
        qk_rope_head_dim: 32,
        v_head_dim: value.max(1),
        interleaved: false,
        max_position_embeddings: 32_768,
        eps: 1e-5,
    };
    let mut config = decoder(fields, &usual)?;
    config.feed_forward.bias = flag(fields, "mlp_bias", false)?;
    let layers = (config.layers.len() as f64).sqrt();
    let width = config.hidden_size as f64;
    // `scale_depth` and `dim_model_base` have no effect if they are `null`.
    let depth = if fields.is_null("scale_depth") { layers } else { positive(fields, "scale_depth", 1.4)? };
    let base =
        if fields.is_null("dim_model_base") { width } else { positive(fields, "dim_model_base", 256.0)? };
    config.embedding_scale = Some(positive(fields, "scale_emb", 12.0)? as f32);
    config.block.residual_multiplier = Some((depth / layers) as f32);
    config.head.scale = Some(LogitScale::Over((width / base) as f32));
    Ok(config)
}

/// Youtu: a dense decoder with latent attention.
pub(super) fn youtu(fields: &Fields) -> Result<DecoderConfig> {
    decoder(fields, &LatentDefaults { max_position_embeddings: 131_072, ..DEEPSEEK })
}

/// Reads a decoder like llama with latent attention.
pub(super) fn decoder(fields: &Fields, usual: &LatentDefaults) -> Result<DecoderConfig> {
    let size = |key: &str, usual: usize| Ok::<_, crate::Error>(fields.optional_size(key)?.unwrap_or(usual));
    let q_lora_rank =
        if fields.is_null("q_lora_rank") { None } else { Some(size("q_lora_rank", usual.q_lora_rank)?) };
    let mut latent = LatentConfig {
        num_heads: fields.size("num_attention_heads")?,
        q_lora_rank,
        kv_lora_rank: size("kv_lora_rank", usual.kv_lora_rank)?,
        qk_nope_head_dim: size("qk_nope_head_dim", usual.qk_nope_head_dim)?,
        qk_rope_head_dim: size("qk_rope_head_dim", usual.qk_rope_head_dim)?,
        v_head_dim: size("v_head_dim", usual.v_head_dim)?,
        bias: flag(fields, "attention_bias", false)?,
        head_gate: false,
        scale: 1.0,
        temperature: None,
    };
    check(fields, &latent)?;
    let defaults = Defaults {
        max_position_embeddings: usual.max_position_embeddings,
        eps: ("rms_norm_eps", usual.eps),
        interleaved: flag(fields, "rope_interleave", usual.interleaved)?,
        ..LLAMA
    };
    let inner = fields
        .without("head_dim")
        .with_default("head_dim", latent.qk_rope_head_dim.into())
        .without("num_key_value_heads")
        .with_default("num_key_value_heads", 1.into());
    let mut config = base::read(&inner, &defaults)?;
    scale_queries(fields, &mut latent, config.max_position_embeddings)?;
    config.draft_layers = routed::draft_layers(fields)?;
    config.attention = latent.attention();
    for layer in &mut config.layers {
        layer.mixer = MixerKind::Latent(latent);
    }
    Ok(config)
}

/// Checks that widths, which are products of two keys, fit an i32, the type of array dimensions.
fn check(fields: &Fields, latent: &LatentConfig) -> Result<()> {
    let widest = [latent.qk_nope_head_dim, latent.v_head_dim, latent.kv_lora_rank, latent.qk_rope_head_dim]
        .into_iter()
        .fold(0, usize::saturating_add);
    if latent.num_heads.saturating_mul(widest) > i32::MAX as usize {
        return Err(fields.error("num_attention_heads", "times the sizes of a head is too large"));
    }
    Ok(())
}

/// Sets the factors of queries: the scale of scores, which depends on yarn, and the factor that grows with the position.
fn scale_queries(fields: &Fields, latent: &mut LatentConfig, context: usize) -> Result<()> {
    let width = (latent.qk_nope_head_dim + latent.qk_rope_head_dim) as f64;
    let mut scale = width.sqrt().recip();
    let key = if fields.has("rope_scaling") { "rope_scaling" } else { "rope_parameters" };
    if let Some(rope) = fields.section(key)? {
        let kind = rope.optional_text(if rope.has("rope_type") { "rope_type" } else { "type" })?;
        let sharpened = kind.is_some_and(|kind| kind != "default");
        if let Some(by) = rope.optional_number("mscale_all_dim")?.filter(|&by| sharpened && by != 0.0) {
            let factor = positive(&rope, "factor", 1.0)?;
            let mscale = if factor > 1.0 { 0.1 * by * factor.ln() + 1.0 } else { 1.0 };
            scale *= mscale * mscale;
        }
        if let Some(growth) = rope.optional_positive("llama_4_scaling_beta")? {
            let step = positive(&rope, "original_max_position_embeddings", context as f64)?;
            latent.temperature =
                Some(AttentionTemperatureConfig { scale: growth as f32, floor_scale: step as f32 });
        }
    }
    latent.scale = scale as f32;
    Ok(())
}

/// Adds experts that are scored by a softmax and limited to groups that `score` ranks. The first layers have none.
fn by_softmax(
    fields: &Fields,
    config: DecoderConfig,
    usual: &routed::RoutingDefaults,
    score: Option<GroupScore>,
    normalizes: bool,
) -> Result<DecoderConfig> {
    let width = fields.optional_size("moe_intermediate_size")?.unwrap_or(usual.moe_intermediate_size);
    let shared = fields.optional_count("n_shared_experts")?.unwrap_or(usual.n_shared_experts);
    let group = |key: &str| Ok::<_, crate::Error>(fields.optional_size(key)?.unwrap_or(1));
    let (n_group, topk_group) = (group("n_group")?, group("topk_group")?);
    let groups = score.map(|score| ExpertGroups { n_group, topk_group, score });
    let experts = MoeConfig {
        routing: RoutingConfig {
            groups,
            // transformers ignores the key in DeepSeek-V2.
            norm_topk_prob: normalizes && flag(fields, "norm_topk_prob", usual.norm_topk_prob)?,
            routed_scaling_factor: positive(fields, "routed_scaling_factor", 1.0)? as f32,
            ..RoutingConfig::softmax(true)
        },
        shared: (shared > 0).then(|| SharedExpertConfig::gated("shared_experts", shared * width)),
        ..read(fields, usual.num_experts, usual.num_experts_per_tok, width)?
    };
    if let Some(groups) = groups {
        routed::check_groups(fields, &experts, groups)?;
    }
    routed::sparse_after_dense(fields, config, experts, usual.first_k_dense_replace)
}
