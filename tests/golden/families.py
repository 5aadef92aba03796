"""The families' fixtures: a tiny random checkpoint of each, and what transformers makes of it (mlx-lm where transformers has no such
model). `make.py` runs this; `python families.py NAME...` writes some of them again.

Where mlx-lm has the family, it must give the same logits, unless the list of differences says why not.
"""
import json, shutil, sys, tempfile
from pathlib import Path

import hybrids
import make  # sets mlx's device before mlx_lm is imported
import mlx.core as mx
import mlx_lm
import numpy as np
import torch
import transformers
from mlx.utils import tree_flatten
from safetensors import safe_open

torch.set_num_threads(1)
gather_qmm = mx.gather_qmm
# mlx-lm passes a scale that its MLX does not know yet, and that is None.
mx.gather_qmm = lambda *arrays, global_scale=None, **options: gather_qmm(*arrays, **options)
STEPS = 64
TINY = dict(
    hidden_size=32, num_hidden_layers=3, intermediate_size=52, num_attention_heads=4, num_key_value_heads=2, vocab_size=make.BPE_VOCAB,
    rms_norm_eps=1e-5, max_position_embeddings=256, torch_dtype="float32", rope_theta=10000.0,
    tie_word_embeddings=False, bos_token_id=1, eos_token_id=4, pad_token_id=0)
SLIDING, FULL = "sliding_attention", "full_attention"
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32)
LONG = dict(type="longrope", short_factor=[1.0, 1.1, 1.3], long_factor=[1.0, 2.0, 5.0])
GEMMA = dict(head_dim=16, query_pre_attn_scalar=20, sliding_window=8, tie_word_embeddings=True)
LATENT = dict(
    num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=10, tie_word_embeddings=False)
GEMMA4 = dict(
    head_dim=8, global_head_dim=16, num_hidden_layers=6, layer_types=[SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL], sliding_window=8,
    final_logit_softcapping=9.0, tie_word_embeddings=True, rope_parameters={
        SLIDING: dict(rope_type="default", rope_theta=10000.0),
        FULL: dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25)})
GPT_OSS_YARN = YARN | dict(truncate=False, beta_fast=32.0, beta_slow=1.0)

LAGUNA = dict(
    head_dim=16, num_attention_heads_per_layer=[4, 2, 6], layer_types=[FULL, SLIDING, SLIDING], sliding_window=8, gating=True, num_experts=6,
    num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=24, moe_routed_scaling_factor=1.7, moe_router_logit_softcapping=1.5,
    rope_parameters={
        FULL: YARN | dict(rope_theta=500000.0, partial_rotary_factor=0.5, attention_factor=1.2),
        SLIDING: dict(rope_type="default", rope_theta=1000.0, partial_rotary_factor=1.0)})
GRANITE = dict(embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=2.0)
EYES = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, in_channels=3, patch_size=2,
            spatial_merge_size=1, temporal_patch_size=1)  # of a model that sees; nothing looks through them
GATED_DELTA = dict(
    head_dim=32, num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
    linear_conv_kernel_dim=4, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25, mrope_section=[2, 1, 1], mrope_interleaved=True))
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=24)

# name: what differs from the tiny config
FAMILIES = {
    "mistral": dict(sliding_window=16, head_dim=16),
    "ministral": dict(head_dim=16, sliding_window=8, layer_types=[SLIDING, FULL, SLIDING], tie_word_embeddings=True),
    "ministral3": dict(head_dim=16, rope_parameters=YARN | dict(
        mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=16, llama_4_scaling_beta=0.4)),
    "qwen2": dict(use_sliding_window=True, sliding_window=12, max_window_layers=1),
    "qwen2_vl": dict(rope_scaling=dict(type="mrope", mrope_section=[2, 1, 1])),
    "qwen2_5_vl": dict(rope_scaling=dict(type="mrope", mrope_section=[2, 1, 1]), tie_word_embeddings=True),
    "qwen3_vl": dict(head_dim=16, rope_scaling=dict(rope_type="default", mrope_section=[4, 2, 2], mrope_interleaved=True)),
    "qwen3_vl_moe": dict(
        head_dim=16, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20, mlp_only_layers=[0], decoder_sparse_step=1, norm_topk_prob=True,
        rope_scaling=dict(rope_type="default", mrope_section=[4, 2, 2], mrope_interleaved=True)),
    "lfm2": dict(
        layer_types=["conv", FULL, "conv"], conv_L_cache=3, conv_bias=False, norm_eps=1e-5, block_auto_adjust_ff_dim=True,
        block_multiple_of=8, block_ffn_dim_multiplier=1.1, block_dim=32, block_ff_dim=60, tie_word_embeddings=True),
    "lfm2_moe": dict(
        layer_types=["conv", FULL, "conv"], conv_L_cache=3, conv_bias=False, norm_eps=1e-5, num_dense_layers=1, num_experts=5,
        num_experts_per_tok=2, moe_intermediate_size=20, use_expert_bias=True, norm_topk_prob=True, routed_scaling_factor=1.5,
        tie_word_embeddings=True),
    "qwen3_5": GATED_DELTA,
    "qwen3_5_moe": GATED_DELTA | EXPERTS,
    "qwen3_next": GATED_DELTA | EXPERTS | dict(
        rope_parameters=None, partial_rotary_factor=0.25, decoder_sparse_step=1, mlp_only_layers=[2], norm_topk_prob=True,
        full_attention_interval=2),
    "qwen3": dict(head_dim=16, attention_bias=True, rope_scaling=YARN),
    "qwen3_moe": dict(
        head_dim=16, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20, mlp_only_layers=[1],
        decoder_sparse_step=1, norm_topk_prob=False),
    "qwen2_moe": dict(
        num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20, shared_expert_intermediate_size=28, mlp_only_layers=[1],
        norm_topk_prob=False),
    "glm4_moe": dict(
        head_dim=16, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, moe_intermediate_size=20, n_shared_experts=2,
        first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.7, use_qk_norm=True, attention_bias=True,
        partial_rotary_factor=0.5, rope_scaling=None),
    "dots1": dict(
        head_dim=16, n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=20, n_shared_experts=1,
        first_k_dense_replace=2, norm_topk_prob=True, routed_scaling_factor=2.5, sliding_window=None),
    "solar_open": dict(
        head_dim=16, n_routed_experts=8, num_experts_per_tok=3, n_group=1, topk_group=1, moe_intermediate_size=20, n_shared_experts=1,
        first_k_dense_replace=0, norm_topk_prob=True, routed_scaling_factor=1.7, partial_rotary_factor=1.0, attention_bias=True),
    "exaone_moe": dict(
        head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, num_shared_experts=1, first_k_dense_replace=1,
        is_moe_layer=[False, True, True], norm_topk_prob=True, routed_scaling_factor=1.7, sliding_window=8, sliding_window_pattern="LLG",
        layer_types=[SLIDING, SLIDING, FULL]),
    "hy_v3": dict(
        head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, num_shared_experts=1, router_scaling_factor=1.7,
        mlp_layer_types=["sparse", "dense", "sparse"]),
    "hunyuan_v1_moe": dict(head_dim=16, num_experts=5, moe_topk=2, intermediate_size=20),
    "afmoe": dict(
        head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, num_shared_experts=1, num_dense_layers=1, route_scale=1.7,
        route_norm=True, score_func="sigmoid", n_group=1, topk_group=1, sliding_window=8, layer_types=[SLIDING, FULL, SLIDING], mup_enabled=True),
    "bailing_moe": dict(
        num_experts=8, num_experts_per_tok=3, moe_intermediate_size=20, num_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True,
        n_group=2, topk_group=1, score_function="sigmoid", routed_scaling_factor=2.5, moe_router_enable_expert_bias=True, use_qk_norm=True,
        use_qkv_bias=True, partial_rotary_factor=0.5),
    "minimax_m2": dict(
        head_dim=16, num_local_experts=6, num_experts_per_tok=2, intermediate_size=20, shared_intermediate_size=0, rotary_dim=8),
    "ernie4_5_moe": dict(
        moe_num_experts=6, moe_k=3, moe_intermediate_size=20, moe_num_shared_experts=2, moe_layer_start_index=1, use_bias=False,
        tie_word_embeddings=False, rope_theta=500000.0),
    "granitemoe": dict(
        num_local_experts=5, num_experts_per_tok=2, intermediate_size=20, embedding_multiplier=3.0, residual_multiplier=0.6,
        attention_multiplier=0.2, logits_scaling=2.0, attention_bias=False),
    "granitemoeshared": dict(
        num_local_experts=5, num_experts_per_tok=2, intermediate_size=20, shared_intermediate_size=24, embedding_multiplier=3.0,
        residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=2.0),
    "phimoe": dict(num_local_experts=5, num_experts_per_tok=2, intermediate_size=20, attention_bias=True, lm_head_bias=True, router_jitter_noise=0.1),
    "glm4_moe_lite": LATENT | dict(
        n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=20, n_shared_experts=1,
        first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.8, rope_scaling=None),
    "deepseek_v3": LATENT | dict(
        n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, moe_intermediate_size=20, n_shared_experts=1,
        first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5, attention_bias=True,
        rope_scaling=YARN | dict(mscale=1.0, mscale_all_dim=0.8)),
    "kimi_k25": LATENT | dict(
        n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=20, n_shared_experts=1,
        first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5, rope_scaling=YARN | dict(mscale=1.0, mscale_all_dim=1.0)),
    "deepseek_v2": LATENT | dict(
        q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=2, n_group=3, topk_group=2, topk_method="group_limited_greedy",
        moe_intermediate_size=20, n_shared_experts=2, first_k_dense_replace=1, norm_topk_prob=False, routed_scaling_factor=1.5,
        rope_scaling=YARN | dict(type="yarn", mscale=0.7, mscale_all_dim=0.7, beta_fast=32, beta_slow=1)),
    "mistral4": LATENT | dict(
        n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=20, n_shared_experts=1,
        first_k_dense_replace=0, norm_topk_prob=True, routed_scaling_factor=1.0, rope_parameters=YARN | dict(
            mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=16, llama_4_scaling_beta=0.4)),
    "minicpm3": LATENT | dict(scale_emb=6.0, scale_depth=1.4, dim_model_base=16, v_head_dim=8, rope_scaling=LONG | dict(
        short_factor=[1.0, 1.1], long_factor=[1.0, 2.0], original_max_position_embeddings=256)),
    "youtu": LATENT | dict(pad_token_id=None),  # transformers zeroes its embedding
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=16, intermediate_size=28),
    "gemma": dict(head_dim=16, num_key_value_heads=1, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True),
    "gemma2": GEMMA | dict(attn_logit_softcapping=4.0, final_logit_softcapping=9.0),
    "gemma3_text": GEMMA | dict(rope_theta=1e6, sliding_window_pattern=3, rope_scaling=dict(rope_type="linear", factor=4.0)),
    "gemma3n_text": dict(
        head_dim=16, sliding_window=8, num_hidden_layers=6, layer_types=[SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL], num_kv_shared_layers=3,
        hidden_size_per_layer_input=12, vocab_size_per_layer_input=make.BPE_VOCAB - 40, altup_num_inputs=3, altup_active_idx=1, laurel_rank=6,
        intermediate_size=[52, 52, 40, 40, 52, 40], activation_sparsity_pattern=[0.9, 0.6, 0.0, 0.0, 0.5, 0.0], final_logit_softcapping=9.0,
        rope_theta=1e6, tie_word_embeddings=True),
    "gemma4_text": GEMMA4 | dict(
        num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=12, vocab_size_per_layer_input=make.BPE_VOCAB),
    "gemma4_unified": GEMMA4 | dict(attention_k_eq_v=True, num_global_key_value_heads=1, num_kv_shared_layers=0),
    "gemma4": GEMMA4 | dict(
        hidden_size=64, intermediate_size=32, num_kv_shared_layers=0, num_global_key_value_heads=1, attention_k_eq_v=True, hidden_size_per_layer_input=0,
        enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=32),
    "phi3": dict(partial_rotary_factor=0.75, rope_scaling=LONG, original_max_position_embeddings=256),
    "phi3-long": dict(rope_scaling=LONG | dict(short_factor=[1.0, 1.1, 1.3, 1.5], long_factor=[1.0, 2.0, 5.0, 9.0]),
                      original_max_position_embeddings=24),
    "smollm3": dict(no_rope_layer_interval=2, tie_word_embeddings=True),
    "olmo2": dict(attention_bias=True),
    "olmo3": dict(sliding_window=8, layer_types=[SLIDING, FULL, SLIDING], rope_theta=500000.0, rope_scaling=YARN | dict(
        rope_theta=500000.0, attention_factor=1.3)),
    "olmoe": dict(num_experts=5, num_experts_per_tok=2, intermediate_size=20, attention_bias=True),
    "granite": dict(
        embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=2.0, attention_bias=True, mlp_bias=True),
    "cohere": dict(use_qk_norm=True, logit_scale=0.5, tie_word_embeddings=True),
    "cohere2": dict(head_dim=8, sliding_window=8, sliding_window_pattern=3, logit_scale=0.5, tie_word_embeddings=True),
    "stablelm": dict(layer_norm_eps=1e-5, use_qkv_bias=True, qk_layernorm=True, partial_rotary_factor=0.5),
    "stablelm-parallel": dict(
        layer_norm_eps=1e-5, use_qkv_bias=False, partial_rotary_factor=0.25, use_parallel_residual=True, hidden_size=48, num_attention_heads=3, num_key_value_heads=3),
    "starcoder2": dict(sliding_window=16, use_bias=True, tie_word_embeddings=True),
    "internlm2": dict(bias=True, rms_norm_eps=1e-5),
    "internlm3": dict(head_dim=8, qkv_bias=True, bias=True, rope_scaling=dict(rope_type="dynamic", factor=6.0)),
    "glm": dict(head_dim=16, attention_bias=True),
    "glm4": dict(head_dim=16, attention_bias=True, partial_rotary_factor=0.5),
    "exaone4": dict(
        sliding_window=8, sliding_window_pattern="LLG", layer_types=[SLIDING, SLIDING, FULL], head_dim=16, rope_scaling=None),
    "ernie4_5": dict(head_dim=16, use_bias=True, tie_word_embeddings=False),
    "hunyuan_v1_dense": dict(head_dim=16, rope_scaling=dict(type="dynamic", alpha=50.0, factor=1.0), use_qk_norm=True, attention_bias=False),
    "seed_oss": dict(head_dim=16, attention_bias=True, attention_out_bias=True, mlp_bias=True),
    "gpt_oss": dict(head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2, intermediate_size=24, rope_scaling=GPT_OSS_YARN),
    "exaone": dict(num_layers=3, layer_norm_epsilon=1e-5, activation_function="silu"),
    "mimo": dict(),
    "minicpm": dict(scale_emb=6.0, scale_depth=1.4, dim_model_base=16, rms_norm_eps=1e-5, tie_word_embeddings=False),
    "helium": dict(head_dim=8, attention_bias=True, mlp_bias=True),
    "apertus": dict(attention_bias=True, rope_scaling=make.LLAMA3_ROPE),
    "cohere2_moe": dict(
        head_dim=16, num_hidden_layers=5, first_k_dense_replace=1, prefix_dense_intermediate_size=40, num_experts=5, num_experts_per_tok=2, intermediate_size=20,
        num_shared_experts=2, shared_expert_combination_strategy="average", expert_selection_fn="sigmoid", norm_topk_prob=True, sliding_window=8,
        sliding_window_pattern=2, logit_scale=0.5, tie_word_embeddings=True),
    "cohere2_moe-layer": dict(
        head_dim=8, rms_norm_eps=None, layer_norm_eps=1e-5, num_experts=5, num_experts_per_tok=2, intermediate_size=20, num_shared_experts=1,
        shared_expert_combination_strategy="sum", expert_selection_fn="softmax", sliding_window=8, sliding_window_pattern=3, logit_scale=0.5,
        attention_bias=True, tie_word_embeddings=True),
    "laguna": LAGUNA,
    "laguna-element": LAGUNA | dict(gating="per-element", num_attention_heads_per_layer=None, moe_router_logit_softcapping=0.0),
    "mellum": dict(
        head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, norm_topk_prob=True, sliding_window=8, layer_types=[FULL, SLIDING, SLIDING],
        mlp_layer_types=["sparse", "dense", "sparse"], attention_bias=True, rope_parameters={
            FULL: YARN | dict(rope_theta=500000.0, attention_factor=1.2), SLIDING: dict(rope_type="default", rope_theta=1000.0)}),
    "muse_glimmer": dict(
        head_dim=16, num_hidden_layers=5, sliding_window=8, final_logit_softcapping=9.0, qk_scale_factor=1.9, output_multiplier=0.7, post_norm_eps=1e-3),
    "granite_swa": GRANITE | dict(sliding_window=8, layer_rope_theta=[0, 10000.0, 500.0]),
    "granitemoe_swa": GRANITE | dict(
        num_hidden_layers=5, sliding_window=8, num_local_experts=5, num_experts_per_tok=2, intermediate_size=20, shared_intermediate_size=24),
    "hyperclovax": GRANITE | dict(head_dim=16, attention_bias=True),
    "nemotron": dict(norm_eps=1e-5, hidden_act="relu2", partial_rotary_factor=0.5, attention_bias=True, mlp_bias=True, head_dim=16),
    "jais2": dict(layer_norm_eps=1e-5, hidden_act="relu2", head_dim=16),
    "arcee": dict(hidden_act="relu2", head_dim=16, mlp_bias=True),
    "phi": dict(layer_norm_eps=1e-5, hidden_act="gelu_new", partial_rotary_factor=0.5),
    "gpt_neox": dict(layer_norm_eps=1e-5, hidden_act="gelu", rotary_pct=0.5, rotary_emb_base=1000),
    "gpt_neox-serial": dict(layer_norm_eps=1e-5, hidden_act="gelu", rotary_pct=0.25, attention_bias=False, use_parallel_residual=False),
    "olmo": dict(clip_qkv=1.2),
    "vaultgemma": GEMMA | dict(attn_logit_softcapping=4.0, final_logit_softcapping=9.0),
    "cwm": dict(head_dim=16, sliding_window=8, rope_scaling=make.LLAMA3_ROPE),
    "lfm3": dict(
        num_hidden_layers=6, head_dim=16, layer_types=["conv", FULL, "conv", SLIDING, FULL, SLIDING], conv_L_cache=5, conv_bias=True, norm_eps=1e-5, sliding_window=8,
        rope_parameters={SLIDING: dict(rope_type="default", rope_theta=1000.0), FULL: dict(
            rope_type="proportional", rope_theta=10000.0, partial_rotary_factor=0.5)}, tie_word_embeddings=True),
}
FAMILIES |= hybrids.FAMILIES
# The parts that see, by family; the tiny config is that of their text.
SEE = {
    "qwen2_vl": EYES | dict(embed_dim=16, hidden_size=32, mlp_ratio=1),
    "qwen2_5_vl": EYES | dict(fullatt_block_indexes=[0], window_size=4),
    "qwen3_vl": EYES | dict(num_position_embeddings=4, deepstack_visual_indexes=[0]),
    "qwen3_vl_moe": EYES | dict(num_position_embeddings=4, deepstack_visual_indexes=[0]),
    "qwen3_5": EYES | dict(num_position_embeddings=4),
    "gemma4": dict(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8, patch_size=2,
        position_embedding_size=8, pooling_kernel_size=1, default_output_length=4, use_clipped_linears=True),
    "qwen3_5_moe": EYES | dict(num_position_embeddings=4),
    "gemma4_unified": dict(patch_size=2, mm_embed_dim=16, mm_posemb_size=4, output_proj_dims=16),
    "kimi_k25": dict(
        patch_size=2, hidden_size=16, num_hidden_layers=1, intermediate_size=16, num_attention_heads=2, pos_emb_height=4, pos_emb_width=4,
        pos_emb_time=1, merge_kernel_size=[1, 1]),
    "muse_glimmer": dict(
        patch_size=2, hidden_size=16, num_hidden_layers=1, intermediate_size=16, num_attention_heads=2, pos_emb_height=4, pos_emb_width=4, patch_temporal=1,
        merge_size=1),
}
# What these have next to both parts.
OUTER = {"muse_glimmer": dict(out_hidden_size=16, projector_hidden_size=16)}
# What their text is called, where that is not their own name.
TEXTS = {"kimi_k25": "deepseek_v3"}
# Longer texts, for recurrences that take a prompt in blocks of 64; not a multiple of it.
LENGTHS = {"qwen3_5": 150, "qwen3_next": 80, "qwen3_5-q4": 100} | hybrids.LENGTHS
# What mlx-lm's `convert` makes of others: its names, its norms, its convolutions, its experts. It is the reference itself.
FOUR_BITS = dict(quantize=True, q_group_size=32, q_bits=4)
CONVERTED = {"qwen3_5-q4": FOUR_BITS, "gemma4-mlx": {}, "glm4_moe_lite-q4": FOUR_BITS, "lfm2_moe-q4": FOUR_BITS} | hybrids.CONVERTED
# What differs from the family's own fixture: routers have groups of 64.
WIDE = dict(hidden_size=64, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=2, layer_types=["conv", FULL])
WIDENED = {
    "glm4_moe_lite-q4": WIDE | dict(q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=32, v_head_dim=32, rms_norm_eps=1e-6),
    "lfm2_moe-q4": WIDE,
}
# transformers has no model of these.
BY_MLX_LM = {"bailing_moe", "exaone", "internlm2", "mimo", "minicpm"}
# Why mlx-lm's logits differ.
DIFFERS = {
    "mistral": "sees everything without layer_types",
    "ministral": "does not have it",
    "ministral3": "yarn's factor of attention",
    "qwen2": "knows no windows",
    "qwen3": "knows no biases",
    "mixtral": "knows no windows",
    "deepseek_v3": "a group that is not chosen counts as 0, not as minus infinity",
    "glm4_moe_lite": "the epsilon of the latents' norms",
    "minicpm3": "always the long factors",
    "ernie4_5_moe": "drops the correction of the choice",
    "granitemoeshared": "does not have it",
    "gemma": "the exact gelu",
    "gemma2": "knows no windows",
    "gemma3_text": "rounds the embeddings' scale to bf16",
    "phi3": "always the long factors",
    "phi3-long": "always the long factors",
    "olmo3": "yarn's attention_factor is not used",
    "starcoder2": "the exact gelu, and knows no windows",
    "glm": "turns whole heads",
    "laguna": "yarn's attention_factor is not used",
    "gpt_oss": "does not read this layout, and does not use yarn's truncate",
} | hybrids.DIFFERS | hybrids.OF_ORIGINAL


def config_of(name):
    family = name.split("-")[0]
    if name in WIDENED:
        return TINY | dict(model_type=family) | FAMILIES[family] | {key: size for key, size in WIDENED[name].items() if key in TINY | FAMILIES[family]}
    if family not in SEE:
        return TINY | dict(model_type=family) | FAMILIES[name]
    text = TINY | dict(model_type=TEXTS.get(family, f"{family}_text")) | FAMILIES[name]
    outer = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype")
    if family.startswith("gemma4"):
        outer += ("vocab_size",)  # which mlx-lm does not read anywhere else
    return dict(model_type=family, text_config=text, vision_config=SEE[family]) | OUTER.get(family, {}) | {key: text[key] for key in outer}


def random_tensor(name, key, shape):
    """Weights like those of make.py: norms near 1 (near 0 where 1 is added), matrices scaled by their inputs, others small."""
    noise = make.generator(f"families/{name}-f32", key).standard_normal(shape, dtype=np.float32)
    if "norm" in key and key.endswith("weight"):
        if name.startswith(("gemma2", "gemma3", "gemma4")) and ".post_" in key:
            return np.float32(0.2) * noise + np.float32(4)  # the layers must outweigh the embedding, or the text repeats itself
        if name == "muse_glimmer":  # the last norm multiplies by its weight, the others by one more
            return np.float32(0.2) * noise + np.float32(key.endswith("language_model.norm.weight"))
        around_zero = name.startswith("gemma") and not name.startswith(("gemma3n", "gemma4")) or name in ("nemotron", "vaultgemma") or name.startswith(("qwen3_5", "qwen3_next")) and "linear_attn" not in key
        return np.float32(0.2) * noise + np.float32(0 if around_zero else 1)
    if key.endswith("A_log"):
        most = 0.5 if name.startswith("kimi_linear") else 2.7  # transformers takes differences of long sums there
        return np.linspace(-4, most, np.prod(shape), dtype=np.float32).reshape(shape)  # heads that hardly forget, and heads that forget at once
    if key.endswith(("layer_scalar", "router.scale", "per_expert_scale", "correct_output_scale")):
        return np.float32(1) + np.float32(0.2) * noise
    if "conv" in key and len(shape) == 3:
        return np.float32(1.2 / max(shape[1:]) ** 0.5) * noise
    if key.endswith("in_proj_qkv.weight"):  # keys with a common part
        noise = noise + np.float32(1.5) * make.generator(f"families/{name}-f32", key + "/common").standard_normal(shape[1:], dtype=np.float32)
    if key.endswith(("alpha_p", "alpha_n")):
        return np.float32(0.3) * noise
    if key.endswith((".beta", ".eps")):
        return np.full(shape, 0.5 if key.endswith("beta") else -1e-6, dtype=np.float32)
    if key.endswith("sinks"):
        return noise
    if len(shape) < 2 or "bias" in key:
        return np.float32(0.3) * noise
    if "embed" in key and "embed_out" not in key:
        return noise if not config_of(name)["tie_word_embeddings"] else np.float32(2.8 / shape[-1] ** 0.5) * noise
    inputs = shape[-2] if name in ("gpt_oss", "qwen3_vl_moe") and ".experts." in key else shape[-1]
    return np.float32((2.8 if "lm_head" in key or "embed_out" in key or "output.weight" in key else 1.6) / inputs ** 0.5) * noise


def hub_tensors(name, folder, config):
    """The names and shapes of a checkpoint as transformers, or mlx-lm, writes it."""
    if name in BY_MLX_LM:
        model_class, arguments = mlx_lm.utils._get_classes(config)
        return {key: value.shape for key, value in tree_flatten(model_class(arguments.from_dict(config)).parameters())}
    torch.manual_seed(0)
    keys = {key: value for key, value in config.items() if key not in ("model_type", "torch_dtype")}
    for part in ("text_config", "vision_config"):
        if part in keys:
            keys[part] = {key: value for key, value in keys[part].items() if key != "torch_dtype"}
    build = auto_class(name)
    build = getattr(build, "from_config", None) or build._from_config
    model = build(
        transformers.AutoConfig.for_model(config["model_type"], **json.loads(json.dumps(keys))), attn_implementation="eager")
    model.save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "np") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}
    for file in folder.iterdir():
        file.unlink()
    return shapes


def auto_class(name):
    if name == "mistral4":  # only reachable through the model that sees
        return transformers.models.mistral4.Mistral4ForCausalLM
    return transformers.AutoModelForImageTextToText if name.split("-")[0] in SEE else transformers.AutoModelForCausalLM


def published_tensors(name, folder, config):
    """The same as published; `folder` is left empty."""
    shapes = hub_tensors(name, folder, config)
    if name == "qwen3_vl_moe":  # transformers writes experts the other way round than the published checkpoints have them
        shapes = {key: [shape[0], shape[2], shape[1]] if ".experts." in key else shape for key, shape in shapes.items()}
    if name == "qwen3_5_moe":  # and these apart, where the published ones have them in one
        text = config["text_config"]
        count, width, hidden = text["num_experts"], text["moe_intermediate_size"], text["hidden_size"]
        blocks = {key.split(".experts.")[0] for key in shapes if ".experts." in key}
        shapes = {key: shape for key, shape in shapes.items() if ".experts." not in key}
        shapes |= {f"{block}.experts.gate_up_proj": [count, 2 * width, hidden] for block in blocks}
        shapes |= {f"{block}.experts.down_proj": [count, hidden, width] for block in blocks}
    shapes = hybrids.published(name, shapes)
    if name == "kimi_k25":  # transformers gives the layers of the text the name of the tower's
        shapes = {key.replace("language_model.model.blocks.", "language_model.model.layers.").replace("model.mm_", "mm_"): shape
                  for key, shape in shapes.items()}
    if name.startswith(("qwen3_5", "qwen3_next")):  # a head that drafts tokens, of which nobody reads anything
        shapes |= {"mtp.fc.weight": [4, 8], "mtp.layers.0.input_layernorm.weight": [4], "mtp.norm.weight": [4]}
    if name == "gemma4_text":  # layers that borrow keys and values have some in published files
        shapes |= {key.replace(f"layers.{layer - 3}.", f"layers.{layer}."): shape for layer in (3, 4, 5) for key, shape in shapes.items()
                   if f"layers.{layer - 3}.self_attn." in key and any(part in key for part in ("k_proj", "v_proj", "k_norm"))}
    return shapes


def write_checkpoint(name, folder, tokenizer):
    config = config_of(name)
    shapes = published_tensors(name, folder, config)
    items = [(key, "F32", random_tensor(name, key, tuple(shape))) for key, shape in sorted(shapes.items())]
    make.write_safetensors(folder / "model.safetensors", items)
    make.write_json(folder / "config.json", config, 1)
    make.write_json(folder / "tokenizer.json", tokenizer)
    make.write_json(folder / "generation_config.json", dict(bos_token_id=1, eos_token_id=4), 1)


def reference(name, folder):
    """From token ids to logits [tokens, vocabulary], in f32."""
    if name in BY_MLX_LM or name in CONVERTED:
        model = mlx_lm.load(str(folder))[0]
        return lambda ids: make.full_pass(model, ids)
    model = auto_class(name).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()

    def logits(ids):
        with torch.no_grad():
            return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    return logits


def greedy_case(logits, ids):
    tokens, rows = [], []
    for _ in range(STEPS):
        row = logits(ids + tokens)[-1].astype(np.float64)
        rows.append(row - np.log(np.exp(row - row.max()).sum()) - row.max())
        tokens.append(int(row.argmax()))
    rows = np.stack(rows)
    order = np.argsort(-rows, axis=-1, kind="stable")[:, :5]
    best = np.take_along_axis(rows, order, axis=-1)
    return dict(prompt=None, prompt_ids=ids, tokens=tokens, logprobs=best[:, 0].round(6).tolist(),
                top=[list(map(list, zip(i, l))) for i, l in zip(order.tolist(), best.round(6).tolist())],
                margins=(best[:, 0] - best[:, 1]).round(6).tolist())


def write(name, source, target, tokenizer):
    folder = source / f"{name}-f32"
    shutil.rmtree(folder, ignore_errors=True)
    if name in CONVERTED:
        original = source / f"{name.split('-')[0]}-f32"
        if name in WIDENED:
            original = Path(tempfile.mkdtemp())
            write_checkpoint(name, original, tokenizer)
        mlx_lm.convert(str(original), str(folder), **CONVERTED[name])
        for file in folder.iterdir():
            if file.name not in ("config.json", "model.safetensors"):
                file.unlink()
        for file in ("tokenizer.json", "generation_config.json"):
            shutil.copyfile(original / file, folder / file)
    else:
        folder.mkdir(parents=True)
        write_checkpoint(name, folder, tokenizer)
    logits = reference(name.split("-")[0], original) if name in hybrids.OF_ORIGINAL else reference(name, folder)
    spread, salt, length = 0.0, 0, LENGTHS.get(name, make.PASS_LENGTH)
    while True:  # until no greedy step of the texts is nearly a tie
        ids = make.generator(f"families/{name}-f32", f"ids{salt}").integers(8, make.BPE_VOCAB - 2, length).tolist()
        rows = logits(ids)
        spread = float(rows.std())
        cases = [greedy_case(logits, prompt) for prompt in (ids[:length - 8], ids[length - 8:-1], ids[-1:])]
        margin = min(min(case["margins"]) for case in cases)
        if margin > 4e-4 * spread:
            break
        salt += 1
    failed = False
    try:
        mlx_model = mlx_lm.load(str(folder))[0]
        difference = make.spread_error(make.full_pass(mlx_model, ids), rows)
        # A scan row by row and blocks of 64 rows round differently.
        failed = name not in DIFFERS and difference > (5e-5 if name.startswith(("qwen3_5", "qwen3_next")) else 1e-5)
    except (ValueError, TypeError, KeyError, AttributeError, SystemExit) as error:
        difference = f"cannot: {str(error)[:80]}"
    print(f"{name:20} deviation {spread:.2f}, salt {salt}, smallest margin {margin:.4f}, mlx-lm {difference}", flush=True)
    versions = dict(transformers=transformers.__version__, torch=torch.__version__.split("+")[0], mlx_lm=mlx_lm.__version__)
    make.write_json(target / f"{name}-f32.json", versions | dict(cases=cases))
    make.write_safetensors(target / f"{name}-f32.safetensors", [("tokens", "I32", np.array(ids)), ("logits", "F32", rows)])
    return failed


def write_all(source, target, tokenizer, names=()):
    failed = [name for name in names or [*FAMILIES, *CONVERTED] if write(name, source, target, tokenizer)]
    assert not failed, f"mlx-lm differs in {failed}"


if __name__ == "__main__":
    corpus = (make.HERE / "corpus.txt").read_text(encoding="utf-8")
    write_all(make.HERE / "models", make.HERE / "expected", make.byte_level_tokenizer(corpus, False), sys.argv[1:])
