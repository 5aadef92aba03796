//! The rules of all families. A family lists groups of rules; the first rule that fits a tensor applies.

use super::rule::Delta::{
    BetaAlpha, Heads as DeltaHeads, Output, Qkv, Rate as DeltaRate, Taps as DeltaTaps, Values,
};
use super::rule::Edit::{Delta, Flat, GateUp, Halves, Heads, MinusOne, Queries, Rate, Row, Same, Skip, Taps};
use super::rule::{Edit, Rule};

const fn rule(stored: &'static str, folder: &'static str, edit: Edit) -> Rule {
    Rule { stored, folder, edit }
}

const fn named(stored: &'static str, folder: &'static str) -> Rule {
    rule(stored, folder, Same)
}

/// Llama and most others.
pub(crate) const LLAMA: &[Rule] = &[
    named("token_embd", "model.embed_tokens"),
    named("output_norm", "model.norm"),
    named("output", "lm_head"),
    rule("rope_freqs.weight", "", Skip),
    rule("rope_factors_long.weight", "", Skip),
    rule("rope_factors_short.weight", "", Skip),
    rule("attn_rot_embd", "", Skip),
    named("attn_norm", "input_layernorm"),
    named("attn_q", "self_attn.q_proj"),
    named("attn_k", "self_attn.k_proj"),
    named("attn_v", "self_attn.v_proj"),
    named("attn_output", "self_attn.o_proj"),
    named("attn_q_norm", "self_attn.q_norm"),
    named("attn_k_norm", "self_attn.k_norm"),
    named("ffn_norm", "post_attention_layernorm"),
    named("ffn_gate", "mlp.gate_proj"),
    named("ffn_up", "mlp.up_proj"),
    named("ffn_down", "mlp.down_proj"),
    named("ffn_gate_inp", "mlp.gate"),
    named("ffn_gate_exps", "mlp.switch_mlp.gate_proj"),
    named("ffn_up_exps", "mlp.switch_mlp.up_proj"),
    named("ffn_down_exps", "mlp.switch_mlp.down_proj"),
    rule("ffn_gate_up_exps", "mlp.switch_mlp.gate_up_proj", GateUp),
    named("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    named("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    named("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    named("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
];

/// Rows of queries and keys alternate.
pub(crate) const PERMUTED: &[Rule] =
    &[rule("attn_q", "self_attn.q_proj", Halves), rule("attn_k", "self_attn.k_proj", Halves)];

/// The norm after attention is stored under this name, and read by the feed-forward block.
pub(crate) const POST_NORMS: &[Rule] = &[named("post_attention_norm", "post_attention_layernorm")];

/// Mixtral, and MiniMax M2 and Phi's mixture.
pub(crate) const MIXTRAL: &[Rule] = &[
    named("ffn_gate_inp", "block_sparse_moe.gate"),
    named("ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj"),
    named("ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj"),
    named("ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj"),
    // Files of 2023 have a tensor for each expert.
    named("ffn_gate.*", "block_sparse_moe.experts.*.w1"),
    named("ffn_up.*", "block_sparse_moe.experts.*.w3"),
    named("ffn_down.*", "block_sparse_moe.experts.*.w2"),
    named("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
];

/// Qwen's mixtures with a gated shared expert.
pub(crate) const QWEN_MOE: &[Rule] = &[
    rule("ffn_gate_inp_shexp", "mlp.shared_expert_gate", Row),
    named("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    named("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    named("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

/// Gated delta layers.
pub(crate) const QWEN3_5: &[Rule] = &[
    rule("attn_qkv", "linear_attn.in_proj_qkv", Delta(Qkv)),
    rule("attn_gate", "linear_attn.in_proj_z", Delta(Values)),
    rule("ssm_beta", "linear_attn.in_proj_b", Delta(DeltaHeads)),
    rule("ssm_alpha", "linear_attn.in_proj_a", Delta(DeltaHeads)),
    rule("ssm_ba", "linear_attn.in_proj_ba", Delta(BetaAlpha)),
    rule("ssm_conv1d", "linear_attn.conv1d", Delta(DeltaTaps)),
    rule("ssm_a", "linear_attn.A_log", Delta(DeltaRate)),
    rule("ssm_dt.bias", "linear_attn.dt_bias", Delta(DeltaHeads)),
    named("ssm_norm", "linear_attn.norm"),
    rule("ssm_out", "linear_attn.out_proj", Delta(Output)),
];

/// Gemma 2 and 3, which have four norms in a layer.
pub(crate) const GEMMA_FEED_FORWARD: &[Rule] = &[rule("ffn_norm", "pre_feedforward_layernorm", MinusOne)];

/// Gemma 1 to 3.
pub(crate) const GEMMA: &[Rule] = &[
    rule("ffn_norm", "post_attention_layernorm", MinusOne),
    rule("output_norm", "model.norm", MinusOne),
    rule("attn_norm", "input_layernorm", MinusOne),
    rule("attn_q_norm", "self_attn.q_norm", MinusOne),
    rule("attn_k_norm", "self_attn.k_norm", MinusOne),
    rule("post_attention_norm", "post_attention_layernorm", MinusOne),
    rule("post_ffw_norm", "post_feedforward_layernorm", MinusOne),
];

/// Gemma 4.
pub(crate) const GEMMA4: &[Rule] = &[
    named("post_attention_norm", "post_attention_layernorm"),
    named("ffn_norm", "pre_feedforward_layernorm"),
    named("post_ffw_norm", "post_feedforward_layernorm"),
    named("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    named("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    named("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    named("layer_output_scale.weight", "layer_scalar"),
    named("per_layer_token_embd", "model.embed_tokens_per_layer"),
    named("per_layer_model_proj", "model.per_layer_model_projection"),
    named("per_layer_proj_norm", "model.per_layer_projection_norm"),
    named("inp_gate", "per_layer_input_gate"),
    named("proj", "per_layer_projection"),
    named("post_norm", "post_per_layer_input_norm"),
    named("ffn_gate_inp", "router.proj"),
    named("ffn_gate_inp.scale", "router.scale"),
    named("ffn_down_exps.scale", "router.per_expert_scale"),
    rule("ffn_gate_up_exps", "experts.switch_glu.gate_up_proj", GateUp),
    named("ffn_gate_exps", "experts.switch_glu.gate_proj"),
    named("ffn_up_exps", "experts.switch_glu.up_proj"),
    named("ffn_down_exps", "experts.switch_glu.down_proj"),
];

/// Phi 3: fused projections.
pub(crate) const PHI: &[Rule] =
    &[named("attn_qkv", "self_attn.qkv_proj"), named("ffn_up", "mlp.gate_up_proj")];

/// GLM 4 without experts.
pub(crate) const GLM: &[Rule] = &[
    rule("attn_qkv", "self_attn.qkv_proj", Queries),
    named("ffn_up", "mlp.gate_up_proj"),
    named("post_attention_norm", "post_self_attn_layernorm"),
    named("post_ffw_norm", "post_mlp_layernorm"),
];

/// gpt-oss.
pub(crate) const GPT_OSS: &[Rule] = &[
    named("attn_sinks.weight", "self_attn.sinks"),
    named("ffn_gate_inp", "mlp.router"),
    named("ffn_gate_exps", "mlp.experts.gate_proj"),
    named("ffn_up_exps", "mlp.experts.up_proj"),
    named("ffn_down_exps", "mlp.experts.down_proj"),
];

/// Granite with experts.
pub(crate) const GRANITE: &[Rule] = &[
    named("ffn_gate_inp", "block_sparse_moe.router.layer"),
    named("ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj"),
    named("ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj"),
    named("ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj"),
    named("ffn_gate_shexp", "shared_mlp.gate_proj"),
    named("ffn_up_shexp", "shared_mlp.up_proj"),
    named("ffn_down_shexp", "shared_mlp.output_linear"),
];

/// Mamba-2 layers beside others.
pub(crate) const MAMBA: &[Rule] = &[
    named("ssm_in", "mamba.in_proj"),
    named("ssm_out", "mamba.out_proj"),
    rule("ssm_conv1d.weight", "mamba.conv1d.weight", Taps),
    named("ssm_conv1d.bias", "mamba.conv1d.bias"),
    named("ssm_dt.bias", "mamba.dt_bias"),
    rule("ssm_a", "mamba.A_log", Rate),
    rule("ssm_d", "mamba.D", Flat),
    rule("ssm_norm", "mamba.norm", Flat),
];

/// Layers of one part: Mamba-2 and Nemotron-H.
pub(crate) const NEMOTRON: &[Rule] = &[
    named("token_embd", "backbone.embeddings"),
    named("output_norm", "backbone.norm_f"),
    named("attn_norm", "norm"),
    named("ssm_in", "mixer.in_proj"),
    named("ssm_out", "mixer.out_proj"),
    rule("ssm_conv1d.weight", "mixer.conv1d.weight", Taps),
    named("ssm_conv1d.bias", "mixer.conv1d.bias"),
    named("ssm_dt.bias", "mixer.dt_bias"),
    rule("ssm_a", "mixer.A_log", Rate),
    rule("ssm_d", "mixer.D", Flat),
    rule("ssm_norm", "mixer.norm", Flat),
    rule("attn_q", "mixer.q_proj", Halves),
    rule("attn_k", "mixer.k_proj", Halves),
    named("attn_v", "mixer.v_proj"),
    named("attn_output", "mixer.o_proj"),
    named("ffn_up", "mixer.up_proj"),
    named("ffn_down", "mixer.down_proj"),
    named("ffn_gate_inp", "mixer.gate"),
    named("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
    named("ffn_up_exps", "mixer.switch_mlp.fc1"),
    named("ffn_down_exps", "mixer.switch_mlp.fc2"),
    named("ffn_up_shexp", "mixer.shared_experts.up_proj"),
    named("ffn_down_shexp", "mixer.shared_experts.down_proj"),
    named("ffn_latent_down", "mixer.fc1_latent_proj"),
    named("ffn_latent_up", "mixer.fc2_latent_proj"),
];

/// Falcon-H1.
pub(crate) const FALCON: &[Rule] = &[
    named("output_norm", "model.final_layernorm"),
    named("ffn_norm.weight", "pre_ff_layernorm.weight"),
    // llama.cpp's converter writes this one without a suffix.
    named("ffn_norm", "pre_ff_layernorm.weight"),
    named("ffn_gate", "feed_forward.gate_proj"),
    named("ffn_up", "feed_forward.up_proj"),
    named("ffn_down", "feed_forward.down_proj"),
];

/// LFM2.
pub(crate) const LFM2: &[Rule] = &[
    named("output_norm", "model.embedding_norm"),
    named("token_embd_norm", "model.embedding_norm"),
    named("attn_norm", "operator_norm"),
    named("attn_output", "self_attn.out_proj"),
    named("attn_q_norm", "self_attn.q_layernorm"),
    named("attn_k_norm", "self_attn.k_layernorm"),
    named("shortconv.in_proj", "conv.in_proj"),
    named("shortconv.out_proj", "conv.out_proj"),
    rule("shortconv.conv.weight", "conv.conv.weight", Taps),
    named("shortconv.conv.bias", "conv.conv.bias"),
    named("ffn_norm", "ffn_norm"),
    named("ffn_gate", "feed_forward.w1"),
    named("ffn_up", "feed_forward.w3"),
    named("ffn_down", "feed_forward.w2"),
    named("ffn_gate_inp", "feed_forward.gate"),
    named("exp_probs_b.bias", "feed_forward.expert_bias"),
    named("ffn_gate_exps", "feed_forward.switch_mlp.gate_proj"),
    named("ffn_up_exps", "feed_forward.switch_mlp.up_proj"),
    named("ffn_down_exps", "feed_forward.switch_mlp.down_proj"),
];

/// Latent attention, with the expansion of latents split as mlx-lm does.
pub(crate) const DEEPSEEK: &[Rule] = &[
    named("attn_q_a", "self_attn.q_a_proj"),
    named("attn_q_a_norm", "self_attn.q_a_layernorm"),
    named("attn_q_b", "self_attn.q_b_proj"),
    named("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    named("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    named("attn_kv_b", "self_attn.kv_b_proj"),
    named("attn_k_b", "self_attn.embed_q"),
    named("attn_v_b", "self_attn.unembed_out"),
];

/// Kimi Linear: Kimi Delta Attention beside latent attention.
pub(crate) const KIMI: &[Rule] = &[
    rule("ssm_conv1d_q", "self_attn.q_conv1d", Taps),
    rule("ssm_conv1d_k", "self_attn.k_conv1d", Taps),
    rule("ssm_conv1d_v", "self_attn.v_conv1d", Taps),
    named("ssm_f_a", "self_attn.f_a_proj"),
    named("ssm_f_b", "self_attn.f_b_proj"),
    named("ssm_g_a", "self_attn.g_a_proj"),
    named("ssm_g_b", "self_attn.g_b_proj"),
    named("ssm_beta", "self_attn.b_proj"),
    rule("ssm_a", "self_attn.A_log", Rate),
    named("ssm_dt.bias", "self_attn.dt_bias"),
    named("ssm_norm", "self_attn.o_norm"),
];

/// OLMo 2 and EXAONE 4: norms after both parts of a layer.
pub(crate) const OLMO: &[Rule] = &[
    named("post_attention_norm", "post_attention_layernorm"),
    named("post_ffw_norm", "post_feedforward_layernorm"),
];

/// StarCoder 2.
pub(crate) const STARCODER: &[Rule] = &[named("ffn_up", "mlp.c_fc"), named("ffn_down", "mlp.c_proj")];

/// Nemotron and Minitron. Files have the factors of norms, the folder has one less.
pub(crate) const MINITRON: &[Rule] = &[
    rule("attn_norm.weight", "input_layernorm.weight", MinusOne),
    rule("ffn_norm.weight", "post_attention_layernorm.weight", MinusOne),
    rule("output_norm.weight", "model.norm.weight", MinusOne),
];

/// StableLM.
pub(crate) const STABLELM: &[Rule] = &[
    rule("attn_q_norm", "self_attn.q_layernorm.norms", Heads),
    rule("attn_k_norm", "self_attn.k_layernorm.norms", Heads),
];

/// EXAONE 3 and 3.5.
pub(crate) const EXAONE: &[Rule] = &[
    named("token_embd", "transformer.wte"),
    named("output_norm", "transformer.ln_f"),
    named("attn_norm", "ln_1"),
    named("attn_q", "attn.attention.q_proj"),
    named("attn_k", "attn.attention.k_proj"),
    named("attn_v", "attn.attention.v_proj"),
    named("attn_output", "attn.attention.out_proj"),
    named("ffn_norm", "ln_2"),
    named("ffn_gate", "mlp.c_fc_0"),
    named("ffn_up", "mlp.c_fc_1"),
    named("ffn_down", "mlp.c_proj"),
];

/// Hunyuan.
pub(crate) const HUNYUAN: &[Rule] = &[
    named("attn_q_norm", "self_attn.query_layernorm"),
    named("attn_k_norm", "self_attn.key_layernorm"),
    named("ffn_gate_inp", "mlp.gate.wg"),
    named("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    named("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    named("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
];

/// Hy 3.
pub(crate) const HY: &[Rule] = &[
    named("ffn_gate_inp", "mlp.router.gate"),
    named("exp_probs_b.bias", "mlp.expert_bias"),
    named("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    named("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    named("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
];

/// ERNIE 4.5 with experts.
pub(crate) const ERNIE: &[Rule] = &[named("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias")];

/// Ling 2.
pub(crate) const BAILING: &[Rule] = &[
    named("token_embd", "model.word_embeddings"),
    named("attn_qkv", "attention.query_key_value"),
    named("attn_output", "attention.dense"),
    named("attn_q_norm", "attention.query_layernorm"),
    named("attn_k_norm", "attention.key_layernorm"),
    named("exp_probs_b.bias", "mlp.gate.expert_bias"),
];

/// AFMoE.
pub(crate) const AFMOE: &[Rule] = &[
    named("attn_gate", "self_attn.gate_proj"),
    named("post_attention_norm", "post_attention_layernorm"),
    named("ffn_norm", "pre_mlp_layernorm"),
    named("post_ffw_norm", "post_mlp_layernorm"),
    named("ffn_gate_inp", "mlp.router.gate"),
    named("exp_probs_b.bias", "mlp.expert_bias"),
];
