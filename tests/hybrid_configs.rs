//! The config keys of families with Mamba-2 or Kimi Delta Attention: invalid values are rejected by name, and alternative keys for the
//! same model give the same model.

use mlx_tests::{device, model_folder};
use serde_json::{Value, json};

use crate::family_configs::{Tensors, assert_refused, bits, renamed, rewritten};

#[test]
fn invalid_settings_of_hybrid_models_are_refused_by_name() {
    let (granite, nemotron, falcon, kimi) =
        ("granitemoehybrid-f32", "nemotron_h-f32", "falcon_h1-f32", "kimi_linear-f32");
    assert_refused(vec![
        (granite, "mamba_n_groups", json!(3), "mamba_n_groups is 3; it must divide mamba_n_heads"),
        (granite, "mamba_d_conv", json!(1), "mamba_d_conv is 1"),
        (granite, "mamba_n_heads", json!(5), "mamba_n_heads is 5; times mamba_d_head (8) it must be 64"),
        (granite, "hidden_act", json!("xielu"), "hidden_act \"xielu\" is not supported; supported are silu"),
        (granite, "layer_types", json!(["mamba", "attention", "mlp"]), "layer_types has \"mlp\" at 2"),
        (granite, "time_step_limit", json!([1.0, 0.5]), "it must be a list of a lower and an upper limit"),
        (nemotron, "hybrid_override_pattern", json!("EM*-MMX"), "hybrid_override_pattern has \"X\" at 6"),
        (nemotron, "hybrid_override_pattern", json!(""), "hybrid_override_pattern has 0 layers"),
        (nemotron, "n_groups", json!(3), "n_groups is 3; it must divide mamba_num_heads"),
        (nemotron, "time_step_min", json!(200.0), "time_step_min is above the upper limit"),
        (nemotron, "n_group", json!(4), "n_group is 4; it must divide 6 experts"),
        (
            nemotron,
            "ssm_state_size",
            json!(1 << 29),
            "mamba_num_heads times the sizes of a head is too large",
        ),
        (falcon, "mlp_multipliers", json!([1.0]), "mlp_multipliers must be a list of 2 numbers"),
        (falcon, "ssm_multipliers", json!([1.0, 1.0]), "ssm_multipliers must be a list of 5 numbers"),
        (falcon, "key_multiplier", json!(0.0), "key_multiplier is 0"),
        (kimi, "linear_attn_config.short_conv_kernel_size", json!(1), "linear_conv_kernel_dim is 1"),
        (
            kimi,
            "linear_attn_config.kda_layers",
            json!([1, 2, 3]),
            "linear_attn_config.kda_layers and full_attn_layers",
        ),
        (
            kimi,
            "moe_router_activation_func",
            json!("relu"),
            "moe_router_activation_func \"relu\" is not supported",
        ),
        (kimi, "mlp_layer_types", json!(["dense"]), "mlp_layer_types has 1 entries"),
        ("lfm3-f32", "layer_types", json!(["conv"]), "layer_types has 1 entries; there are 6 layers"),
        (
            "lfm3-f32",
            "layer_types",
            json!(vec!["mamba"; 6]),
            "layer_types has \"mamba\" at 0; supported are conv",
        ),
        ("lfm3-f32", "conv_L_cache", json!(1), "conv_L_cache is 1"),
        ("lfm3-f32", "sliding_window", Value::Null, "sliding_window is missing"),
        ("bailing_hybrid-f32", "kda_lower_bound", json!(0.5), "kda_lower_bound is 0.5; it must be below 0"),
        ("bailing_hybrid-f32", "group_norm_size", json!(8), "group_norm_size is set, as in Ling 2.5"),
        (
            "bailing_hybrid-f32",
            "moe_shared_expert_intermediate_size",
            json!(24),
            "moe_shared_expert_intermediate_size is 24",
        ),
    ]);
}

/// Changes the keys of an object: removes some and sets others.
fn with(removed: &'static [&'static str], set: Value) -> impl FnOnce(&mut Value) {
    move |config| {
        let keys = config.as_object_mut().expect("an object");
        for key in removed {
            keys.remove(*key);
        }
        keys.extend(set.as_object().expect("an object").clone());
    }
}

#[test]
fn other_words_for_a_hybrid_model_give_the_same_model() {
    let _turn = device();
    let of = |name: &str| bits(&model_folder(name));
    let same = |name: &str, config: &dyn Fn(&mut Value)| {
        let other = rewritten(name, |_| (), |value| config(value));
        assert!(bits(other.path()) == of(name), "{name}");
    };
    let kinds = json!(["moe", "linear_attention", "full_attention", "mlp", "mamba", "mamba", "moe"]);
    same("nemotron_h-f32", &|config| {
        with(&["hybrid_override_pattern"], json!({"layers_block_type": kinds, "num_hidden_layers": 2}))(
            config,
        );
    });
    same("nemotron_h-f32", &|config| {
        let older = json!({"mamba_n_groups": 2, "mamba_d_conv": 4, "mamba_conv_bias": true, "mamba_dt_limit": [0, 100]});
        with(&["n_groups", "conv_kernel", "use_conv_bias", "time_step_limit"], older)(config);
    });
    same("granitemoehybrid-f32", &|config| {
        let newer = json!({"layers_block_type": ["linear_attention", "full_attention", "linear_attention"], "mamba_d_head": "auto"});
        with(&["layer_types", "position_embedding_type"], newer)(config);
    });
    same("falcon_h1-f32", &|config| {
        with(&["mamba_n_groups"], json!({"mamba_d_ssm": null, "mamba_n_groups": 2}))(config);
    });
    same("kimi_linear-f32", &|config| {
        let words = json!({
            "linear_head_dim": 8, "linear_num_heads": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_local_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1, "norm_topk_prob": true,
        });
        let own = &[
            "linear_attn_config",
            "first_k_dense_replace",
            "num_experts",
            "num_experts_per_token",
            "num_shared_experts",
            "moe_renormalize",
        ];
        with(own, words)(config);
    });
}

#[test]
fn names_of_tensors_of_other_exports_give_the_same_model() {
    let _turn = device();
    let same = |name: &str, tensors: &dyn Fn(&mut Tensors)| {
        let other = rewritten(name, |all| tensors(all), |_| ());
        assert!(bits(other.path()) == bits(&model_folder(name)), "{name}");
    };
    same("nemotron_h-f32", &|tensors| {
        renamed(tensors, |name| name.replacen("backbone.", "model.", 1));
        tensors.insert("mtp.norm.weight".to_owned(), (safetensors::Dtype::F32, vec![1], vec![0; 4]));
    });
    same("kimi_linear-f32", &|tensors| {
        for (name, (_, shape, _)) in tensors.iter_mut() {
            if name.ends_with(".dt_bias") {
                *shape = vec![3, 8];
            }
        }
    });
}

/// Time steps outside of the limits are clamped, which changes the result.
#[test]
fn limits_of_time_steps_hold() {
    let _turn = device();
    for (name, keys) in [
        ("granitemoehybrid-f32", json!({"time_step_limit": [0.4, 0.5]})),
        ("nemotron_h-f32", json!({"time_step_limit": [0.4, 100.0]})),
        ("nemotron_h-f32", json!({"time_step_min": 0.4})),
        ("falcon_h1-f32", json!({"time_step_limit": [0.4, {"__float__": "Infinity"}]})),
    ] {
        let limited = rewritten(name, |_| (), with(&[], keys.clone()));
        assert!(bits(limited.path()) != bits(&model_folder(name)), "{name}, {keys}");
    }
}
