//! The config keys of residual streams, sparse gates, ropes by layer and projections: invalid values are rejected by name.

use serde_json::json;

use crate::family_configs::assert_refused;

#[test]
fn invalid_streams_and_sparse_gates_are_refused_by_name() {
    let gemma3n = "gemma3n_text-f32";
    assert_refused(vec![
        (
            gemma3n,
            "altup_active_idx",
            json!(3),
            "altup_active_idx is 3; it must be below altup_num_inputs, 3",
        ),
        (gemma3n, "altup_num_inputs", json!(65), "altup_num_inputs is 65"),
        (
            gemma3n,
            "intermediate_size",
            json!([52, 40]),
            "intermediate_size has 2 entries; there are 6 layers",
        ),
        (gemma3n, "intermediate_size", json!([52, 0.5]), "intermediate_size must be a number above 0"),
        (gemma3n, "activation_sparsity_pattern", json!([0.5]), "activation_sparsity_pattern has 1 entries"),
        (
            gemma3n,
            "activation_sparsity_pattern",
            json!([0, 0, 0, 0, 0, 1]),
            "activation_sparsity_pattern has 1;",
        ),
        (gemma3n, "num_kv_shared_layers", json!(4), "leaves layer 2 of 6 without a layer of its type"),
        (gemma3n, "hidden_size_per_layer_input", json!(0), "hidden_size_per_layer_input must be above 0"),
    ]);
}

#[test]
fn invalid_ropes_by_layer_and_projections_are_refused_by_name() {
    assert_refused(vec![
        ("granite_swa-f32", "layer_rope_theta", json!([0]), "layer_rope_theta has 1 entries"),
        ("granite_swa-f32", "layer_rope_theta", json!([0, -1, 0]), "layer_rope_theta has -1"),
        ("muse_glimmer-f32", "text_config.attention_bias", json!(true), "attention_bias is true"),
        ("phi-f32", "qk_layernorm", json!(true), "qk_layernorm is true"),
        ("olmo-f32", "clip_qkv", json!(-1), "clip_qkv is -1"),
    ]);
}
