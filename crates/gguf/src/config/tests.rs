//! Tests of config.json: keys of transformers, factors of rope, and errors.

use serde_json::json;

use super::rope;
use crate::testing::{File, keys};

#[test]
fn llama_has_the_keys_of_transformers() {
    let config = File::of("llama", &keys(&json!({"rope.freq_base": 5e5})), &[]).config().expect("a config");
    let expected = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "vocab_size": 32,
        "tie_word_embeddings": true,
        "max_position_embeddings": 64,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 5e5,
        "attention_bias": false,
        "mlp_bias": false,
    });
    assert_eq!(config, expected);
}

#[test]
fn a_head_of_its_own_unties_the_embedding() {
    let mut file = File::of("qwen3", &keys(&json!({"attention.key_length": 16})), &[]);
    file.add("output.weight", &[32, 8]);
    let config = file.config().expect("a config");
    assert_eq!((&config["tie_word_embeddings"], &config["head_dim"]), (&json!(false), &json!(16)));
}

#[test]
fn scaling_of_llama3_is_recovered_from_its_factors() {
    // The wavelengths of theta 500 000 and 8 dimensions are 6, 167, 4443 and 118 143 positions.
    let factors = |factor: f32| vec![1.0, 1.0, rope::llama3_factor(4443.0, factor.into()) as f32, factor];
    let file = |floats| {
        let mut file =
            File::of("llama", &keys(&json!({"rope.freq_base": 5e5, "attention.key_length": 8})), &[]);
        file.add_floats("rope_freqs.weight", floats);
        file
    };
    let config = file(factors(32.0)).config().expect("a config");
    let expected = json!({
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    assert_eq!(config["rope_scaling"], expected);
    assert_eq!(file(vec![1.0; 4]).config().expect("a config").get("rope_scaling"), None);
    for wrong in [vec![1.0, 2.0, 3.0, 4.0], vec![1.0, 1.0, 1.0, f32::NAN], vec![0.0; 4]] {
        let message = file(wrong).config().expect_err("other factors").to_string();
        assert!(message.contains("tensor rope_freqs.weight has factor"), "{message}");
    }
}

#[test]
fn other_scalings_are_read_from_their_keys() {
    let scaling =
        |more| File::of("llama", &keys(&more), &[]).config().map(|config| config["rope_scaling"].clone());
    let linear = json!({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0});
    assert_eq!(scaling(linear).expect("a config"), json!({"rope_type": "linear", "factor": 4.0}));
    let yarn = json!({
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16,
    });
    let expected = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
    assert_eq!(scaling(yarn).expect("a config"), expected);
    let message = scaling(json!({"rope.scaling.type": "spiral"})).expect_err("an unknown type").to_string();
    assert!(message.contains("llama.rope.scaling.type is \"spiral\"; supported are"), "{message}");
    let message = scaling(json!({"rope.scaling.type": "yarn"})).expect_err("no length").to_string();
    assert!(message.contains("rope.scaling.original_context_length is missing"), "{message}");
}

#[test]
fn layers_of_gemma3_have_types() {
    let file = File::of("gemma3", &keys(&json!({"attention.sliding_window": 4})), &[]);
    let config = file.config().expect("a config");
    assert_eq!(config["layer_types"], json!(["sliding_attention"]));
    assert_eq!(config["rope_theta"], json!(1e6));
    let file = File::of("gemma3", &keys(&json!({})), &[]);
    assert_eq!(file.config().expect("a config")["layer_types"], json!(["full_attention"]));
    let listed = json!({"attention.sliding_window": 4, "attention.sliding_window_pattern": [false]});
    let file = File::of("gpt-oss", &keys(&listed), &[]);
    let message = file.config().expect_err("no experts").to_string();
    assert!(message.contains("gpt-oss.expert_feed_forward_length is missing"), "{message}");
}

#[test]
fn deepseek_is_told_apart_by_its_router() {
    let more = json!({
        "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 4, "attention.kv_lora_rank": 4,
        "attention.key_length_mla": 6, "attention.value_length_mla": 4, "rope.dimension_count": 2,
    });
    let layer: &[(&str, &[usize])] = &[("ffn_gate_inp.weight", &[4, 8])];
    let config = File::of("deepseek2", &keys(&more), layer).config().expect("a config");
    assert_eq!((&config["model_type"], &config["topk_method"]), (&json!("deepseek_v2"), &json!("greedy")));
    assert_eq!((&config["qk_nope_head_dim"], &config["q_lora_rank"]), (&json!(4), &json!(null)));
    let layer: &[(&str, &[usize])] = &[("ffn_gate_inp.weight", &[4, 8]), ("exp_probs_b.bias", &[4])];
    let config = File::of("deepseek2", &keys(&more), layer).config().expect("a config");
    assert_eq!(config["model_type"], json!("deepseek_v3"));
}

/// Older files of Ollama have a cap of logits, and no factor of the rope.
#[test]
fn older_files_of_gemma_3_are_corrected() {
    let config = |layers: usize, more| {
        let mut file = File::of("gemma3", &keys(&more), &[]);
        (1..layers).for_each(|layer| file.add(&format!("blk.{layer}.attn_norm.weight"), &[8]));
        file.config().expect("a config")
    };
    let more = |layers| json!({"block_count": layers, "final_logit_softcapping": 30.0});
    assert_eq!(config(26, more(26))["final_logit_softcapping"], json!(null));
    assert_eq!(config(18, more(18))["final_logit_softcapping"], json!(30.0));
    assert_eq!(config(26, more(26)).get("rope_scaling"), None);
    assert_eq!(config(34, more(34))["rope_scaling"], json!({"rope_type": "linear", "factor": 8.0}));
    let own = json!({"block_count": 34, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0});
    assert_eq!(config(34, own)["rope_scaling"]["factor"], json!(4.0));
}

#[test]
fn files_without_a_supported_decoder_are_refused() {
    let refusal = |architecture: &str, more| {
        let file = File::of(architecture, &keys(&more), &[]);
        let message = file.config().expect_err("no decoder").to_string();
        assert_eq!(message, file.placements().expect_err("no decoder").to_string());
        message
    };
    let none = json!({});
    assert!(refusal("clip", none.clone()).contains("image or audio part"));
    assert!(refusal("nomic-bert", none.clone()).contains("encoders and their embeddings are not supported"));
    assert!(refusal("llama4", none).contains("docs/models.md lists the supported models"));
    assert!(refusal("llama", json!({"general.type": "mmproj"})).contains("image or audio part"));
    let rotated = json!({"prism.hadamard.block_size": 1024});
    assert!(refusal("qwen35", rotated).contains("rotated matrices (Bonsai 2)"));
    assert!(refusal("llama", json!({"general.type": "adapter"})).contains("general.type is \"adapter\""));
}

#[test]
fn wrong_keys_are_named() {
    for (more, expected) in [
        (json!({"block_count": 2_000_000_000}), "llama.block_count is 2000000000; the file has only"),
        (json!({"block_count": 0}), "llama.block_count is 0"),
        (json!({"nextn_predict_layers": 1}), "it must be above nextn_predict_layers"),
        (json!({"embedding_length": "8"}), "llama.embedding_length must be a whole number"),
        (json!({"embedding_length": 1}), "llama.attention.head_count is above embedding_length"),
        (json!({"attention.head_count": 0}), "llama.attention.head_count is missing or 0"),
        (json!({"attention.head_count": -1}), "llama.attention.head_count must be whole numbers"),
        (
            json!({"attention.layer_norm_rms_epsilon": 0.0}),
            "llama.attention.layer_norm_rms_epsilon is missing or 0",
        ),
        (json!({"rope.freq_base": 0.0}), "llama.rope.freq_base is 0"),
        (json!({"rope.dimension_count": 2}), "llama.rope.dimension_count is below the size of a head"),
    ] {
        let message = File::of("llama", &keys(&more), &[]).config().expect_err("a wrong key").to_string();
        assert!(message.contains(expected), "{message}");
    }
    let file = File::of("lfm2", &keys(&json!({"block_count": 2, "attention.head_count_kv": [1, 0, 1]})), &[]);
    let message = file.config().expect_err("no taps").to_string();
    assert!(message.contains("lfm2.shortconv.l_cache is missing"), "{message}");
}
