"""Fixtures of families with Mamba-2 or Kimi Delta Attention; families.py and convert.py write them with the others."""
MAMBA = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=12, mamba_d_conv=4, mamba_expand=2)
GRANITE = MAMBA | dict(embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=2.0, attention_bias=False)
NO_LIMIT = [0.0, float("inf")]  # which Python writes as Infinity, as published files have it

# name: what differs from the tiny config
FAMILIES = {
    "granitemoehybrid": GRANITE | dict(
        layer_types=["mamba", "attention", "mamba"], position_embedding_type="nope", num_local_experts=5, num_experts_per_tok=2,
        intermediate_size=20, shared_intermediate_size=24, mamba_n_groups=2, mamba_conv_bias=True, mamba_proj_bias=False,
        tie_word_embeddings=True),
    "granitemoehybrid-dense": GRANITE | dict(
        layer_types=["mamba", "attention", "mamba"], position_embedding_type="rope", num_local_experts=0,
        intermediate_size=44, shared_intermediate_size=44, mamba_n_groups=1, mamba_conv_bias=False, mamba_proj_bias=True,
        time_step_limit=[0.3, 1.1]),
    "nemotron_h": dict(
        hybrid_override_pattern="EM*-MME", num_hidden_layers=7, head_dim=16, mamba_num_heads=4, mamba_head_dim=12, ssm_state_size=10,
        n_groups=2, conv_kernel=4, use_conv_bias=True, use_bias=False, mamba_proj_bias=False, mlp_bias=False, attention_bias=False,
        layer_norm_epsilon=1e-5, mlp_hidden_act="relu2", n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=20, moe_shared_expert_intermediate_size=28, moe_latent_size=16, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.8, time_step_limit=[0.0, 100.0]),
    "falcon_h1": MAMBA | dict(
        num_hidden_layers=2, head_dim=16, mamba_d_ssm=64, mamba_n_groups=2, mamba_conv_bias=True, mamba_proj_bias=False,
        mamba_rms_norm=True, mamba_norm_before_gate=False, projectors_bias=False, attention_bias=False, mlp_bias=False,
        attention_in_multiplier=0.8, attention_out_multiplier=0.9, embedding_multiplier=1.7, key_multiplier=0.6, lm_head_multiplier=0.7,
        mlp_multipliers=[0.9, 0.6], ssm_in_multiplier=1.2, ssm_multipliers=[0.7, 0.9, 0.8, 1.3, 0.6], ssm_out_multiplier=0.7,
        rope_theta=1e6),
    "falcon_h1-plain": MAMBA | dict(
        num_hidden_layers=2, head_dim=8, mamba_d_ssm=64, mamba_n_groups=1, mamba_conv_bias=False, mamba_rms_norm=False,
        embedding_multiplier=1.7, lm_head_multiplier=0.7, mlp_multipliers=[0.9, 0.6], ssm_in_multiplier=1.2,
        attention_in_multiplier=1.0, key_multiplier=1.0, attention_out_multiplier=1.1, ssm_out_multiplier=0.9,
        ssm_multipliers=[0.7, 0.9, 0.8, 1.3, 0.6], tie_word_embeddings=True),
    "mamba2": dict(
        num_heads=8, head_dim=8, expand=2, state_size=10, n_groups=2, conv_kernel=3, use_bias=True, use_conv_bias=True,
        layer_norm_epsilon=1e-5, time_step_limit=NO_LIMIT, time_step_rank=2, tie_word_embeddings=True),
    "kimi_linear": dict(
        num_hidden_layers=3, linear_attn_config=dict(
            head_dim=8, num_heads=3, short_conv_kernel_size=4, kda_layers=[1, 3], full_attn_layers=[2]),
        num_key_value_heads=4, head_dim=16, q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=10,
        mla_use_nope=True, num_experts=6, num_experts_per_token=2, moe_intermediate_size=20, num_shared_experts=1,
        first_k_dense_replace=1, moe_layer_freq=1, moe_renormalize=True, routed_scaling_factor=1.5, num_expert_group=1, topk_group=1,
        model_max_length=256),
}
FAMILIES["bailing_hybrid"] = dict(
    num_hidden_layers=3, layer_group_size=2, head_dim=8, short_conv_kernel_size=4, kda_safe_gate=True, kda_lower_bound=-4.0, num_key_value_heads=4,
    q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=10, num_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
    moe_intermediate_size=20, num_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5)
# Longer texts, for recurrences that take a prompt in blocks of 64 or 16; not a multiple of it.
LENGTHS = {"granitemoehybrid-dense": 150, "nemotron_h": 80, "falcon_h1": 80, "mamba2": 140, "kimi_linear": 80, "bailing_hybrid": 80}
# What mlx-lm's `convert` makes of others.
CONVERTED = {"granitemoehybrid-mlx": {}, "nemotron_h-mlx": {}, "falcon_h1-mlx": {}, "kimi_linear-mlx": {}}
# Those of them whose reference is that of the original, and why.
OF_ORIGINAL = {
    "granitemoehybrid-mlx": "mlx-lm normalizes without groups",
    "falcon_h1-mlx": "mlx-lm forgets the factors of keys and values",
    "kimi_linear-mlx": "the epsilon of the latents' norms",
}
# Why mlx-lm's logits differ.
DIFFERS = {
    "granitemoehybrid": "normalizes without groups",
    "falcon_h1": "normalizes without groups, and forgets the factors of keys and values",
    "mamba2": "normalizes without groups",
    "kimi_linear": "the epsilon of the latents' norms",
}

# Sources of conversions, with rows of whole groups: what differs from the plain config of convert.py.
CONVERTS = {
    "granitemoehybrid": GRANITE | dict(
        mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, num_hidden_layers=2, layer_types=["mamba", "attention"], num_local_experts=3,
        num_experts_per_tok=2, intermediate_size=32, shared_intermediate_size=64, mamba_n_groups=1, mamba_conv_bias=True,
        mamba_proj_bias=False, position_embedding_type="nope", tie_word_embeddings=True),
    "granitemoehybrid-dense": GRANITE | dict(
        mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, num_hidden_layers=1, layer_types=["mamba"], num_local_experts=0,
        intermediate_size=96, shared_intermediate_size=96, mamba_n_groups=1, mamba_conv_bias=True, mamba_proj_bias=True,
        position_embedding_type="nope", tie_word_embeddings=False),
    "nemotron_h": dict(
        hybrid_override_pattern="ME*-", num_hidden_layers=4, intermediate_size=96, mamba_num_heads=8, mamba_head_dim=8,
        ssm_state_size=16, n_groups=2, conv_kernel=4, use_conv_bias=True, use_bias=False, mamba_proj_bias=False, mlp_bias=False,
        attention_bias=False, layer_norm_epsilon=1e-5, n_routed_experts=3, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=64, moe_shared_expert_intermediate_size=96, moe_latent_size=32, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.5, tie_word_embeddings=False),
    "falcon_h1": dict(FAMILIES["falcon_h1"], num_hidden_layers=1, mamba_d_ssm=128, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1,
                      intermediate_size=96, head_dim=16, tie_word_embeddings=False),
    "mamba2": dict(FAMILIES["mamba2"], num_hidden_layers=1, head_dim=16, state_size=16, conv_kernel=4, time_step_limit=[0.0, 100.0],
                   intermediate_size=128),
    "kimi_linear": dict(
        FAMILIES["kimi_linear"], num_hidden_layers=2, intermediate_size=96, moe_intermediate_size=32, kv_lora_rank=64, qk_nope_head_dim=32, v_head_dim=32,
        linear_attn_config=dict(head_dim=32, num_heads=2, short_conv_kernel_size=4, kda_layers=[1], full_attn_layers=[2])),
}


def published(name, shapes):
    """What transformers writes, under the names as published: it gives dense blocks of kimi_linear the name of the others."""
    if name == "bailing_hybrid":  # transformers gives both kinds of attention the name that only one has
        linear = {key.split(".attention.")[0] for key in shapes if ".attention.A_log" in key}
        return {key.replace(".dense.", ".o_proj.") if key.split(".attention.")[0] in linear else key: shape for key, shape in shapes.items()}
    dense = "layers.0.block_sparse_moe."
    return {key.replace(dense, "layers.0.mlp."): shape for key, shape in shapes.items()} if name == "kimi_linear" else shapes
