//! The config keys of mixtures, latents and mixed layer types: keys that would change the result are applied or rejected by name.

use mlx_tests::{device, model_folder};
use serde_json::json;

use crate::family_configs::{assert_refused, bits, rewritten};

#[test]
fn other_ways_of_routing_are_refused_by_name() {
    assert_refused(vec![
        ("deepseek_v3-f32", "scoring_func", json!("softmax"), "scoring_func \"softmax\" is not supported"),
        ("deepseek_v3-f32", "topk_method", json!("greedy"), "topk_method \"greedy\" is not supported"),
        ("glm4_moe-f32", "scoring_func", json!("softmax"), "scoring_func \"softmax\""),
        ("glm4_moe_lite-f32", "mlp_layer_types", json!(["dense", "sparse"]), "mlp_layer_types has 2 entries"),
        (
            "hy_v3-f32",
            "mlp_layer_types",
            json!(["dense", "wide", "dense"]),
            "mlp_layer_types has \"wide\" at 1",
        ),
        ("minimax_m2-f32", "scoring_func", json!("softmax"), "scoring_func \"softmax\""),
        ("minimax_m2-f32", "qk_norm_type", json!("per_head"), "qk_norm_type \"per_head\""),
        ("minimax_m2-f32", "shared_intermediate_size", json!(8), "shared_intermediate_size must be 0"),
        ("ernie4_5_moe-f32", "moe_gate_act", json!("sigmoid"), "moe_gate_act \"sigmoid\""),
        ("afmoe-f32", "n_group", json!(2), "n_group is above 1"),
        ("afmoe-f32", "score_func", json!("softmax"), "score_func \"softmax\""),
        ("afmoe-f32", "attention_bias", json!(true), "attention_bias is true"),
        ("bailing_moe-f32", "score_function", json!("relu"), "score_function \"relu\""),
        ("bailing_moe-f32", "norm_head", json!(true), "norm_head is true"),
        ("bailing_moe-f32", "use_bias", json!(true), "use_bias is true"),
        ("bailing_moe-f32", "n_group", json!(3), "n_group is 3; it must divide 8 experts"),
        ("hunyuan_v1_moe-f32", "moe_topk", json!([2, 1, 2]), "moe_topk must be the same number"),
        ("hunyuan_v1_moe-f32", "use_cla", json!(true), "use_cla is true"),
        ("hunyuan_v1_moe-f32", "num_shared_expert", json!(2), "num_shared_expert must be 1"),
        ("mimo-f32", "use_sliding_window", json!(true), "use_sliding_window is true"),
        ("cohere2_moe-f32", "expert_selection_fn", json!("relu"), "expert_selection_fn \"relu\""),
        (
            "cohere2_moe-f32",
            "shared_expert_combination_strategy",
            json!("max"),
            "shared_expert_combination_strategy \"max\"",
        ),
        ("laguna-f32", "gating", json!(false), "gating is false"),
        (
            "laguna-f32",
            "num_attention_heads_per_layer",
            json!([4]),
            "num_attention_heads_per_layer has 1 entries",
        ),
        ("laguna-f32", "num_attention_heads_per_layer", json!([4, 2.5, 4]), "has 2.5"),
        (
            "laguna-f32",
            "num_attention_heads_per_layer",
            json!([4, 3, 4]),
            "num_key_value_heads is 2; it must divide",
        ),
        (
            "laguna-f32",
            "moe_apply_router_weight_on_input",
            json!(true),
            "moe_apply_router_weight_on_input is true",
        ),
        ("mellum-f32", "mlp_layer_types", json!(["dense"]), "mlp_layer_types has 1 entries"),
    ]);
}

/// Hunyuan's counts may be given per layer.
#[test]
fn a_count_for_each_layer_equals_one_for_all() {
    let _turn = mlx_tests::device();
    let lists = |config: &mut serde_json::Value| {
        (config["moe_topk"], config["num_experts"]) = (json!([2, 2, 2]), json!([5, 5, 5]));
    };
    let listed = rewritten("hunyuan_v1_moe-f32", |_| (), lists);
    assert!(bits(listed.path()) == bits(&mlx_tests::model_folder("hunyuan_v1_moe-f32")));
}

/// Other tools write the same checkpoint under other names.
#[test]
fn other_names_of_the_same_tensors_give_the_same_model() {
    let _turn = mlx_tests::device();
    for (name, from, to) in [
        ("bailing_moe-f32", ".mlp.gate.gate_proj.weight", ".mlp.gate.weight"),
        ("laguna-f32", ".mlp.experts.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
        ("exaone_moe-f32", ".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
        ("kimi_k25-f32", "language_model.model.layers.", "language_model.model.blocks."),
    ] {
        let copy = rewritten(
            name,
            |tensors| {
                let all = std::mem::take(tensors);
                assert!(all.keys().any(|key| key.contains(from)), "{name} has no {from}");
                tensors.extend(all.into_iter().map(|(key, tensor)| (key.replace(from, to), tensor)));
            },
            |_| (),
        );
        assert!(bits(copy.path()) == bits(&mlx_tests::model_folder(name)), "{name}");
    }
}

/// `null` turns these two off.
#[test]
fn minicpm3_without_factors_equals_factors_of_one() {
    let _turn = mlx_tests::device();
    let set = |depth: serde_json::Value, base: serde_json::Value| {
        let copy = rewritten(
            "minicpm3-f32",
            |_| (),
            |config| {
                (config["scale_depth"], config["dim_model_base"]) = (depth, base);
            },
        );
        bits(copy.path())
    };
    let (layers, width) = (3.0_f64, 32);
    assert!(set(json!(null), json!(null)) == set(json!(layers.sqrt()), json!(width)));
    assert!(set(json!(null), json!(width)) != set(json!(1.4), json!(width)));
}

/// With `use_bias`, ERNIE's head has one, tied or not; config.json does not mention it.
#[test]
fn a_head_has_the_bias_that_the_files_have() {
    let _turn = mlx_tests::device();
    for (name, vocabulary) in [("ernie4_5_moe-f32", 320), ("llama-tied-f32", 320)] {
        let with = |value: f32| {
            let add = |tensors: &mut crate::family_configs::Tensors| {
                let bytes = (0..vocabulary).flat_map(|index| (value * index as f32).to_le_bytes()).collect();
                let bias = (safetensors::Dtype::F32, vec![vocabulary], bytes);
                assert_eq!(tensors.insert("lm_head.bias".to_owned(), bias), None);
            };
            bits(rewritten(name, add, |_| ()).path())
        };
        let plain = bits(&mlx_tests::model_folder(name));
        assert!(with(0.0) == plain, "{name}");
        let logits = |bits: &[u32]| -> Vec<f32> { bits.iter().map(|bits| f32::from_bits(*bits)).collect() };
        let (biased, plain) = (logits(&with(0.5)), logits(&plain));
        assert_eq!(plain.len() % vocabulary, 0, "{name}");
        for (index, (biased, plain)) in biased.iter().zip(&plain).enumerate() {
            let expected = plain + 0.5 * (index % vocabulary) as f32;
            assert!((biased - expected).abs() < 1e-3, "{name}: {biased} and {expected} at {index}");
        }
    }
}

/// transformers writes a window and a shared expert of 0 if they are unused.
#[test]
fn a_window_and_a_shared_expert_of_nothing_are_none() {
    let _turn = mlx_tests::device();
    let without = |name: &str, set: fn(&mut serde_json::Value)| bits(rewritten(name, |_| (), set).path());
    let zero = without("qwen2_moe-f32", |config| config["sliding_window"] = json!(0));
    assert!(zero == bits(&mlx_tests::model_folder("qwen2_moe-f32")));
    let zero = without("granitemoe-f32", |config| config["shared_intermediate_size"] = json!(0));
    assert!(zero == bits(&mlx_tests::model_folder("granitemoe-f32")));
}

/// GGUF files have gate and up of Granite's shared expert apart.
#[test]
fn the_shared_expert_of_granite_may_be_in_three_matrices() {
    for name in ["granitemoeshared-f32", "granitemoehybrid-f32"] {
        let _turn = device();
        let apart = rewritten(
            name,
            |all| {
                let end = ".shared_mlp.input_linear.weight";
                let both: Vec<String> = all.keys().filter(|name| name.ends_with(end)).cloned().collect();
                assert!(!both.is_empty());
                for name in both {
                    let (dtype, shape, bytes) = all.remove(&name).expect("it is listed");
                    let prefix = name.trim_end_matches("input_linear.weight");
                    for (part, bytes) in
                        ["gate_proj", "up_proj"].into_iter().zip(bytes.chunks(bytes.len() / 2))
                    {
                        let shape = vec![shape[0] / 2, shape[1]];
                        all.insert(format!("{prefix}{part}.weight"), (dtype, shape, bytes.to_vec()));
                    }
                }
            },
            |_| {},
        );
        assert_eq!(bits(apart.path()), bits(&model_folder(name)), "{name}");
    }
}
