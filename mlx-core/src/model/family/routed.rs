//! Families with routers like DeepSeek-V3's, which score experts by a sigmoid or correct the choice.

use super::base::{self, Defaults, LLAMA, flag, positive};
use super::layers;
use super::mixtures::{read, sparse};
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::QkNormScope;
use crate::model::config::{BlockConfig, DecoderConfig};
use crate::model::moe::{
    CorrectionBias, ExpertGroups, ExpertTensors, GroupScore, MoeConfig, RoutingConfig, ScoringFunc,
    SharedExpertConfig,
};
use crate::model::tensors::TensorNames;

/// The defaults of DeepSeek-V3's routing for keys that config.json lacks.
pub(super) struct RoutingDefaults {
    pub(super) num_experts: usize,
    pub(super) num_experts_per_tok: usize,
    pub(super) moe_intermediate_size: usize,
    pub(super) n_shared_experts: usize,
    pub(super) first_k_dense_replace: usize,
    pub(super) norm_topk_prob: bool,
}

/// GLM 4.5 and later, with experts.
pub(super) fn glm4_moe(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields
        .with_default("intermediate_size", 10_944.into())
        .with_default("partial_rotary_factor", 0.5.into());
    let defaults = Defaults {
        num_kv_heads: Some(8),
        max_position_embeddings: 131_072,
        eps: ("rms_norm_eps", 1e-5),
        partial_rotary_factor: Some(0.5),
        ..LLAMA
    };
    let mut config = base::read(fields, &defaults)?;
    config.attention.biases.qkv = flag(fields, "attention_bias", false)?;
    if flag(fields, "use_qk_norm", false)? {
        base::normalize_heads(&mut config, QkNormScope::Head);
    }
    config.draft_layers = draft_layers(fields)?;
    let usual = RoutingDefaults {
        num_experts: 128,
        num_experts_per_tok: 8,
        moe_intermediate_size: 1408,
        n_shared_experts: 1,
        first_k_dense_replace: 1,
        norm_topk_prob: true,
    };
    corrected(fields, config, &usual)
}

/// Solar Open: GLM 4.5's mixture in all layers.
pub(super) fn solar_open(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields.with_default("intermediate_size", 10_240.into());
    let defaults = Defaults {
        num_kv_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 131_072,
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 1e6,
        partial_rotary_factor: Some(1.0),
        ..LLAMA
    };
    let mut config = base::read(fields, &defaults)?;
    config.attention.biases.qkv = flag(fields, "attention_bias", false)?;
    if flag(fields, "use_qk_norm", false)? {
        base::normalize_heads(&mut config, QkNormScope::Head);
    }
    let usual = RoutingDefaults {
        num_experts: 128,
        num_experts_per_tok: 8,
        moe_intermediate_size: 1280,
        n_shared_experts: 1,
        first_k_dense_replace: 0,
        norm_topk_prob: true,
    };
    corrected(fields, config, &usual)
}

/// K-EXAONE: the attention of EXAONE 4 with llama's norms.
pub(super) fn exaone_moe(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields
        .with_default("intermediate_size", 16_384.into())
        .with_default("n_shared_experts", fields.optional_count("num_shared_experts")?.unwrap_or(1).into())
        .with_default("routed_scaling_factor", 2.5.into());
    let mut config = super::olmo::exaone4(fields)?;
    config.block = BlockConfig::LLAMA;
    let usual = RoutingDefaults {
        num_experts: 64,
        num_experts_per_tok: 8,
        moe_intermediate_size: 1024,
        n_shared_experts: 1,
        first_k_dense_replace: 1,
        norm_topk_prob: true,
    };
    corrected(fields, config, &usual)
}

/// Hy 3: heads are normalized, and all layers except the first have experts.
pub(super) fn hy_v3(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields
        .with_default("intermediate_size", 13_312.into())
        .with_default("n_shared_experts", fields.optional_count("num_shared_experts")?.unwrap_or(1).into())
        .with_default("routed_scaling_factor", positive(fields, "router_scaling_factor", 2.826)?.into());
    let defaults = Defaults {
        num_kv_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 131_072,
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 11_158_840.0,
        ..LLAMA
    };
    let mut config = base::with_biases(fields, &defaults)?;
    base::normalize_heads(&mut config, QkNormScope::Head);
    config.draft_layers = draft_layers(fields)?;
    let usual = RoutingDefaults {
        num_experts: 192,
        num_experts_per_tok: 8,
        moe_intermediate_size: 1536,
        n_shared_experts: 1,
        first_k_dense_replace: 1,
        norm_topk_prob: true,
    };
    let bias = config.feed_forward.bias;
    let mut config = corrected(fields, config, &usual)?;
    if let Some(experts) = &mut config.experts {
        experts.router = "router.gate";
        experts.routing.correction_bias = Some(CorrectionBias { name: "expert_bias", as_found: false });
        experts.shared =
            experts.shared.map(|shared| SharedExpertConfig { name: "shared_mlp", bias, ..shared });
    }
    Ok(config)
}

/// dots.llm1: heads are normalized.
pub(super) fn dots1(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields.with_default("intermediate_size", 10_944.into());
    let mut config = base::with_biases(fields, &Defaults { num_kv_heads: Some(32), ..LLAMA })?;
    config.feed_forward.bias = false;
    base::normalize_heads(&mut config, QkNormScope::Head);
    let window = layers::window(fields, Some(4096))?;
    let first = fields.optional_number("max_window_layers")?.unwrap_or(62.0);
    let is_upper = |layer: usize| window.is_some() && layer as f64 >= first;
    let sliding = layers::kinds(fields, config.layers.len(), is_upper)?;
    layers::set_window(fields, &mut config, &sliding, window)?;
    let usual = RoutingDefaults {
        num_experts: 1,
        num_experts_per_tok: 1,
        moe_intermediate_size: 1408,
        n_shared_experts: 0,
        first_k_dense_replace: 0,
        norm_topk_prob: false,
    };
    corrected(fields, config, &usual)
}

/// MiniMax M2: queries and keys are normalized over their whole width.
pub(super) fn minimax_m2(fields: &Fields) -> Result<DecoderConfig> {
    if fields.numbers("attn_type_list")?.contains(&0.0) {
        return Err(fields.error("attn_type_list", "has layers of linear attention, which is not supported"));
    }
    expect(fields, "scoring_func", "sigmoid")?;
    expect(fields, "qk_norm_type", "per_layer")?;
    if fields.optional_count("shared_intermediate_size")?.is_some_and(|width| width > 0) {
        return Err(
            fields.error("shared_intermediate_size", "must be 0: shared experts are not supported here")
        );
    }
    let defaults = Defaults {
        num_kv_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 196_608,
        rope_theta: 5e6,
        partial_rotary_factor: Some(1.0),
        ..LLAMA
    };
    let head_dim = base::head_dim(fields, &defaults)?;
    let rotary = fields.optional_size("rotary_dim")?.unwrap_or(head_dim) as f64 / head_dim as f64;
    let fields = &fields.with_default("partial_rotary_factor", rotary.into());
    let mut config = base::read(fields, &defaults)?;
    if flag(fields, "use_qk_norm", true)? {
        base::normalize_heads(&mut config, QkNormScope::Width);
    }
    config.tensors = TensorNames { renamed: &[(".mlp.", ".block_sparse_moe.")], nested: false };
    let experts = MoeConfig {
        routing: RoutingConfig {
            scoring_func: ScoringFunc::Sigmoid,
            correction_bias: Some(CorrectionBias { name: "e_score_correction_bias", as_found: false }),
            ..RoutingConfig::softmax(true)
        },
        tensors: ExpertTensors::Each(["w1", "w3", "w2"]),
        ..read(fields, 256, 8, config.feed_forward.intermediate_size)?
    };
    Ok(sparse(config, experts, |_| true))
}

/// ERNIE 4.5 with experts: a softmax with a correction bias for the choice.
pub(super) fn ernie4_5_moe(fields: &Fields) -> Result<DecoderConfig> {
    expect(fields, "moe_gate_act", "softmax")?;
    let fields = &fields
        .with_default("num_key_value_heads", 4.into())
        .with_default("head_dim", (fields.size("hidden_size")? / fields.size("num_attention_heads")?).into())
        .with_default("num_experts", fields.optional_size("moe_num_experts")?.unwrap_or(64).into())
        .with_default("num_experts_per_tok", fields.optional_size("moe_k")?.unwrap_or(6).into());
    let config = super::llama::ernie4_5(fields)?;
    let width = fields.optional_size("moe_intermediate_size")?.unwrap_or(1536);
    let shared = fields.optional_count("moe_num_shared_experts")?.unwrap_or(2);
    let bias = config.feed_forward.bias;
    let experts = MoeConfig {
        routing: RoutingConfig {
            // mlx-lm drops this tensor when it converts.
            correction_bias: Some(CorrectionBias {
                name: "moe_statics.e_score_correction_bias",
                as_found: true,
            }),
            ..RoutingConfig::softmax(true)
        },
        shared: (shared > 0).then(|| SharedExpertConfig {
            bias,
            ..SharedExpertConfig::gated("shared_experts", shared * width)
        }),
        ..read(fields, 64, 6, width)?
    };
    let first = fields.optional_count("moe_layer_start_index")?.unwrap_or(1);
    let last = fields.optional_number("moe_layer_end_index")?.filter(|&last| last >= 0.0);
    let step = fields.optional_size("moe_layer_interval")?.unwrap_or(1);
    Ok(sparse(config, experts, |layer| {
        (layer + 1).is_multiple_of(step) && layer >= first && last.is_none_or(|last| layer as f64 <= last)
    }))
}

/// Adds experts that are scored by a sigmoid and chosen from the best groups with a correction bias. The first layers have none.
pub(super) fn corrected(
    fields: &Fields,
    config: DecoderConfig,
    usual: &RoutingDefaults,
) -> Result<DecoderConfig> {
    let experts = corrected_experts(fields, usual)?;
    sparse_after_dense(fields, config, experts, usual.first_k_dense_replace)
}

/// Reads experts that are scored by a sigmoid and chosen from the best groups with a correction bias.
pub(super) fn corrected_experts(fields: &Fields, usual: &RoutingDefaults) -> Result<MoeConfig> {
    expect(fields, "scoring_func", "sigmoid")?;
    expect(fields, "topk_method", "noaux_tc")?;
    let width = fields.optional_size("moe_intermediate_size")?.unwrap_or(usual.moe_intermediate_size);
    let shared = fields.optional_count("n_shared_experts")?.unwrap_or(usual.n_shared_experts);
    let groups = ExpertGroups {
        n_group: fields.optional_size("n_group")?.unwrap_or(1),
        topk_group: fields.optional_size("topk_group")?.unwrap_or(1),
        score: GroupScore::BestTwo,
    };
    let experts = MoeConfig {
        routing: RoutingConfig {
            scoring_func: ScoringFunc::Sigmoid,
            correction_bias: Some(CorrectionBias { name: "gate.e_score_correction_bias", as_found: false }),
            groups: Some(groups),
            norm_topk_prob: flag(fields, "norm_topk_prob", usual.norm_topk_prob)?,
            routed_scaling_factor: positive(fields, "routed_scaling_factor", 1.0)? as f32,
            logit_softcap: None,
            scaled: None,
        },
        shared: (shared > 0).then(|| SharedExpertConfig::gated("shared_experts", shared * width)),
        ..read(fields, usual.num_experts, usual.num_experts_per_tok, width)?
    };
    check_groups(fields, &experts, groups)?;
    Ok(experts)
}

/// Adds `experts` to the layers that `mlp_layer_types` names, or else to every `moe_layer_freq`-th layer from `first_k_dense_replace` on.
pub(super) fn sparse_after_dense(
    fields: &Fields,
    config: DecoderConfig,
    experts: MoeConfig,
    first: usize,
) -> Result<DecoderConfig> {
    let first = fields.optional_count("first_k_dense_replace")?.unwrap_or(first);
    let step = fields.optional_size("moe_layer_freq")?.unwrap_or(1);
    let usual = |layer: usize| layer >= first && layer.is_multiple_of(step);
    let kinds = layers::sparse_kinds(fields, config.layers.len(), usual)?;
    Ok(sparse(config, experts, |layer| kinds[layer]))
}

/// Rejects any value of a routing key except the known one.
pub(super) fn expect(fields: &Fields, key: &str, known: &str) -> Result<()> {
    match fields.optional_text(key)? {
        Some(other) if other != known => {
            Err(fields.error(key, format_args!("{other:?} is not supported; supported is {known}")))
        }
        _ => Ok(()),
    }
}

/// Returns the number of draft layers after the last layer, which some checkpoints have.
pub(super) fn draft_layers(fields: &Fields) -> Result<usize> {
    match fields.optional_count("num_nextn_predict_layers")? {
        Some(count) => Ok(count),
        None => Ok(fields.optional_count("num_mtp_layers")?.unwrap_or(0)),
    }
}

/// Checks that groups are equal, large enough to be ranked, and together have as many experts as are chosen.
pub(super) fn check_groups(fields: &Fields, experts: &MoeConfig, groups: ExpertGroups) -> Result<()> {
    let ExpertGroups { n_group, topk_group, .. } = groups;
    if !experts.num_experts.is_multiple_of(n_group) || n_group > 1 && experts.num_experts < 2 * n_group {
        let message = format_args!(
            "is {n_group}; it must divide {} experts into groups of two or more",
            experts.num_experts
        );
        return Err(fields.error("n_group", message));
    }
    if topk_group > n_group || topk_group * (experts.num_experts / n_group) < experts.num_experts_per_tok {
        let message = format_args!(
            "is {topk_group}; it must be at most n_group, and leave {} experts to choose from",
            experts.num_experts_per_tok
        );
        return Err(fields.error("topk_group", message));
    }
    Ok(())
}
