//! The config keys in which families differ: invalid values are rejected by name, and other layouts of the same checkpoint give the
//! same model.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::array::Rows;
use mlx_core::cache::Variant;
use mlx_core::model::{self, Batch};
use mlx_core::weights::WeightPolicy;
use mlx_tests::{device, model_copy, model_folder};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

/// Returns the error of loading a copy of `name` with `value` at `path` in its config (keys joined by dots).
fn refusal(name: &str, path: &str, value: Value) -> String {
    let _turn = device();
    let copy = model_copy(name);
    let file = copy.path().join("config.json");
    let text = std::fs::read(&file).expect("the file is there");
    let mut config: Value = serde_json::from_slice(&text).expect("the file is json");
    let mut place = &mut config;
    for key in path.split('.') {
        place = &mut place[key];
    }
    *place = value;
    std::fs::write(&file, config.to_string()).expect("the file can be written");
    let policy = WeightPolicy::for_device(false).expect("a device");
    let loaded = model::load(copy.path(), policy, &mut |_, _| {});
    loaded.err().unwrap_or_else(|| panic!("{name} with another {path} must be refused")).to_string()
}

/// A checkpoint, a key of its config, a value for it, and words that the error must contain.
pub(crate) type Case = (&'static str, &'static str, Value, &'static str);

pub(crate) fn assert_refused(cases: Vec<Case>) {
    for (name, path, value, words) in cases {
        let message = refusal(name, path, value);
        assert!(
            message.contains("config.json") && message.contains(words),
            "{name}: {message:?} does not say {words:?}"
        );
    }
}

#[test]
fn invalid_windows_softcaps_and_factors_are_refused_by_name() {
    let layers = |kinds: &[&str]| json!(kinds);
    assert_refused(vec![
        ("qwen2-f32", "hidden_act", json!("relu6"), "hidden_act \"relu6\" is not supported"),
        ("gemma2-f32", "hidden_activation", json!(3), "hidden_activation is 3"),
        (
            "gemma2-f32",
            "layer_types",
            layers(&["full_attention"; 2]),
            "layer_types has 2 entries; there are 3 layers",
        ),
        (
            "gemma2-f32",
            "layer_types",
            layers(&["chunked_attention"; 3]),
            "layer_types has \"chunked_attention\" at 0",
        ),
        ("gemma2-f32", "sliding_window", Value::Null, "sliding_window is missing"),
        ("gemma2-f32", "sliding_window", json!(0), "sliding_window is 0"),
        ("gemma2-f32", "attn_logit_softcapping", json!(-2), "attn_logit_softcapping is -2"),
        ("gemma2-f32", "final_logit_softcapping", json!("high"), "final_logit_softcapping is \"high\""),
        ("gemma2-f32", "query_pre_attn_scalar", json!(0), "query_pre_attn_scalar is 0"),
        ("gemma-f32", "use_bidirectional_attention", json!(true), "use_bidirectional_attention is true"),
        ("gemma3_text-f32", "sliding_window_pattern", json!(0), "sliding_window_pattern is 0"),
        ("gemma3_text-f32", "rope_local_base_freq", json!("x"), "rope_local_base_freq is \"x\""),
        (
            "mixtral-f32",
            "layer_types",
            layers(&["full_attention"; 3]),
            "layer_types differs from sliding_attention at 0",
        ),
        ("llama-f32", "layer_types", layers(&["sliding_attention"; 2]), "sliding_window is missing"),
        ("smollm3-f32", "no_rope_layers", json!([1]), "no_rope_layers has 1 entries"),
        ("smollm3-f32", "no_rope_layer_interval", json!(-4), "no_rope_layer_interval is -4"),
        ("exaone4-f32", "sliding_window_pattern", json!("LX"), "sliding_window_pattern is \"LX\""),
        ("exaone4-f32", "sliding_window_pattern", json!(0), "sliding_window_pattern is 0"),
        ("granite-f32", "residual_multiplier", json!("half"), "residual_multiplier is \"half\""),
        ("granite-f32", "logits_scaling", json!(0), "logits_scaling is 0"),
        ("cohere-f32", "logit_scale", json!(-1), "logit_scale is -1"),
        ("cohere-f32", "use_qk_norm", json!("yes"), "use_qk_norm is \"yes\""),
    ]);
}

#[test]
fn invalid_rope_and_expert_settings_are_refused_by_name() {
    let yarn = |key: &str, value: Value| {
        let mut section = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        section[key] = value;
        section
    };
    assert_refused(vec![
        ("stablelm-f32", "partial_rotary_factor", json!(1.5), "partial_rotary_factor is 1.5"),
        ("stablelm-f32", "partial_rotary_factor", json!(0.4), "partial_rotary_factor rotates 3 of 8"),
        ("minicpm-f32", "sparse_config", json!({}), "sparse_config is set"),
        ("minicpm-f32", "dim_model_base", json!(0), "dim_model_base is 0"),
        ("qwen3_moe-f32", "num_experts_per_tok", json!(7), "num_experts_per_tok is 7; there are 6 experts"),
        (
            "gemma4_text-f32",
            "num_kv_shared_layers",
            json!(4),
            "leaves layer 2 of 6 without a layer of its type",
        ),
        (
            "gemma4_text-f32",
            "use_bidirectional_attention",
            json!("all"),
            "use_bidirectional_attention is \"all\"",
        ),
        (
            "gemma4_text-f32",
            "vocab_size_per_layer_input",
            json!(9),
            "vocab_size_per_layer_input is 9; it must not",
        ),
        ("gemma4_text-f32", "num_global_key_value_heads", json!(0), "num_global_key_value_heads is 0"),
        (
            "gemma4_text-f32",
            "per_layer_config",
            json!({"2": {"eps": 1}}),
            "eps is not supported for a single layer",
        ),
        ("gemma4-f32", "text_config.top_k_experts", json!(null), "top_k_experts"),
        ("olmoe-f32", "clip_qkv", json!(3.0), "clip_qkv is set"),
        ("qwen3_moe-f32", "mlp_only_layers", json!("none"), "mlp_only_layers must be a list"),
        ("qwen3_moe-f32", "decoder_sparse_step", json!(0), "decoder_sparse_step is 0"),
        (
            "qwen3_moe-f32",
            "moe_intermediate_size",
            json!(21),
            "has shape [20, 32], config.json needs [21, 32]",
        ),
        ("gpt_oss-f32", "swiglu_limit", json!("7"), "swiglu_limit is \"7\""),
        ("gpt_oss-f32", "num_local_experts", json!(0), "num_local_experts is 0"),
        (
            "phi3-f32",
            "rope_scaling.short_factor",
            json!([1, 2]),
            "rope_scaling.short_factor must be a list of 3",
        ),
        (
            "phi3-f32",
            "rope_scaling.long_factor",
            json!([1, 2, -3]),
            "rope_scaling.long_factor must be a list of 3",
        ),
        (
            "phi3-f32",
            "rope_scaling.type",
            json!("yarn"),
            "rope_scaling.type \"yarn\" is not supported for phi3",
        ),
        ("qwen3-f32", "rope_scaling", yarn("factor", json!("much")), "rope_scaling.factor is \"much\""),
        ("qwen3-f32", "rope_scaling", yarn("truncate", json!(1)), "rope_scaling.truncate is 1"),
        ("qwen3-f32", "rope_scaling", yarn("beta_fast", json!(0)), "rope_scaling.beta_fast is 0"),
        (
            "qwen3-f32",
            "rope_scaling",
            json!({"type": "spiral"}),
            "rope_scaling.type \"spiral\" is not supported",
        ),
        ("hunyuan_v1_dense-f32", "rope_scaling.alpha", json!(-1), "rope_scaling.alpha is -1"),
        (
            "ministral3-f32",
            "rope_parameters.llama_4_scaling_beta",
            json!("b"),
            "llama_4_scaling_beta is \"b\"",
        ),
        ("mistral-f32", "num_hidden_layers", json!(1 << 29), "num_hidden_layers is 536870912"),
    ]);
}

/// Tensors by name: their type, shape and bytes.
pub(crate) type Tensors = BTreeMap<String, (safetensors::Dtype, Vec<usize>, Vec<u8>)>;

/// Returns a copy of `name` with changed tensors and config.
pub(crate) fn rewritten(
    name: &str,
    tensors: impl FnOnce(&mut Tensors),
    config: impl FnOnce(&mut Value),
) -> tempfile::TempDir {
    let copy = model_copy(name);
    let (weights, file) = (copy.path().join("model.safetensors"), copy.path().join("config.json"));
    let bytes = std::fs::read(&weights).expect("the fixture has weights");
    let parsed = SafeTensors::deserialize(&bytes).expect("the fixture is a safetensors file");
    let owned = |(name, view): (String, TensorView)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    let mut all: Tensors = parsed.tensors().into_iter().map(owned).collect();
    tensors(&mut all);
    let views = all.iter().map(|(name, (dtype, shape, data))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).expect("the shape fits"))
    });
    let bytes = safetensors::serialize(views, None).expect("the tensors fit together");
    std::fs::write(&weights, bytes).expect("the file can be written");
    let text = std::fs::read(&file).expect("the file is there");
    let mut value: Value = serde_json::from_slice(&text).expect("the file is json");
    config(&mut value);
    std::fs::write(&file, value.to_string()).expect("the file can be written");
    copy
}

/// Returns the bits of the logits of a short text.
pub(crate) fn bits(folder: &Path) -> Vec<u32> {
    let policy = WeightPolicy::for_device(false).expect("a device");
    let model = model::load(folder, policy, &mut |_, _| {}).expect("the checkpoint loads");
    let tokens: Vec<u32> = (20..60).collect();
    let hidden = model
        .forward(Batch::prompt(&tokens, 0), &mut [&mut model.new_state(Variant::default())])
        .expect("the pass runs");
    let rows = Rows::new(&model.logits(&hidden).expect("the head runs")).expect("rows");
    rows.values().expect("values").iter().map(|logit| logit.to_bits()).collect()
}

pub(crate) fn renamed(tensors: &mut Tensors, name: impl Fn(&str) -> String) {
    *tensors = std::mem::take(tensors).into_iter().map(|(old, tensor)| (name(&old), tensor)).collect();
}

#[test]
fn the_text_model_of_a_vision_model_equals_the_text_model_alone() {
    let _turn = device();
    for (text, outer) in [("gemma3_text", "gemma3"), ("gemma3n_text", "gemma3n"), ("ministral3", "mistral3")]
    {
        let name = &format!("{text}-f32");
        let alone = bits(&model_folder(name));
        for (body, head) in
            [("language_model.model.", "language_model.lm_head."), ("model.language_model.", "lm_head.")]
        {
            let nest = |tensors: &mut Tensors| {
                renamed(tensors, |name| {
                    if name.starts_with("lm_head.") {
                        name.replacen("lm_head.", head, 1)
                    } else {
                        name.replacen("model.", body, 1)
                    }
                });
                let eye = (safetensors::Dtype::F32, vec![2], vec![0; 8]);
                tensors.insert("vision_tower.eye.weight".to_owned(), eye);
            };
            let wrapped = |text: Value| json!({"model_type": outer, "text_config": text});
            let nested = rewritten(name, nest, |config| *config = wrapped(config.take()));
            assert!(bits(nested.path()) == alone, "{outer} under {body}");
        }
    }
}

/// Stacks the tensors of `parts` into one.
fn stacked(tensors: &mut Tensors, parts: &[String]) -> (safetensors::Dtype, Vec<usize>, Vec<u8>) {
    let parts: Vec<_> = parts.iter().map(|name| tensors.remove(name).expect("the expert is there")).collect();
    let shape = [&[parts.len()], parts[0].1.as_slice()].concat();
    (parts[0].0, shape, parts.into_iter().flat_map(|part| part.2).collect())
}

#[test]
fn stacked_experts_equal_separate_experts() {
    let _turn = device();
    let one_by_one = bits(&model_folder("mixtral-f32"));
    let stack = |tensors: &mut Tensors| {
        for layer in 0..3 {
            let place = format!("model.layers.{layer}.block_sparse_moe");
            for (old, new) in [("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")] {
                let parts: Vec<String> =
                    (0..4).map(|expert| format!("{place}.experts.{expert}.{old}.weight")).collect();
                let all = stacked(tensors, &parts);
                tensors.insert(format!("{place}.switch_mlp.{new}.weight"), all);
            }
        }
    };
    assert!(bits(rewritten("mixtral-f32", stack, |_| ()).path()) == one_by_one);
}

/// Newer exports put `rope_theta` and `rope_scaling` into `rope_parameters`.
#[test]
fn rope_parameters_equal_the_older_keys() {
    let _turn = device();
    let old = bits(&model_folder("qwen3-f32"));
    let newer = |config: &mut Value| {
        let scaling = config["rope_scaling"].take();
        config["rope_parameters"] = scaling;
    };
    assert!(bits(rewritten("qwen3-f32", |_| (), newer).path()) == old);
    let old = bits(&model_folder("gemma3_text-f32"));
    let by_kind = |config: &mut Value| {
        let mut full = config["rope_scaling"].take();
        full["rope_theta"] = config["rope_theta"].take();
        config["rope_parameters"] = json!({"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}});
    };
    assert!(bits(rewritten("gemma3_text-f32", |_| (), by_kind).path()) == old);
}

/// transformers saves a pattern of 0 together with a null window.
#[test]
fn exaone_without_windows_loads_as_transformers_saves_it() {
    let _turn = device();
    let saved = |pattern: Value| {
        move |config: &mut Value| {
            config["sliding_window"] = Value::Null;
            config["sliding_window_pattern"] = pattern;
            config["layer_types"] = json!(["full_attention", "full_attention", "full_attention"]);
        }
    };
    let again = rewritten("exaone4-f32", |_| (), saved(json!(0)));
    assert!(bits(again.path()) == bits(rewritten("exaone4-f32", |_| (), saved(json!("LLG"))).path()));
}

#[test]
fn iquestcoder_has_defaults_of_its_own() {
    let _turn = device();
    let spelled = |config: &mut Value| {
        (config["rms_norm_eps"], config["rope_theta"]) = (json!(1e-5), json!(500_000.0));
        config["use_sliding_window"] = json!(false);
    };
    let silent = |config: &mut Value| {
        let keys = config.as_object_mut().expect("an object");
        for key in ["rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"] {
            keys.remove(key);
        }
        config["model_type"] = json!("iquestcoder");
    };
    let plain = |config: &mut Value| {
        silent(config);
        spelled(config);
        config["model_type"] = json!("llama");
    };
    let llama = bits(rewritten("llama-f32", |_| (), plain).path());
    assert!(bits(rewritten("llama-f32", |_| (), silent).path()) == llama);
    let windows = |config: &mut Value| {
        silent(config);
        (config["use_sliding_window"], config["sliding_window"]) = (json!(true), json!(8));
    };
    assert!(bits(rewritten("llama-f32", |_| (), windows).path()) != llama);
}

/// This is how transformers standardizes the keys.
#[test]
fn the_context_before_scaling_that_stands_outside_of_the_rope_section_wins() {
    let _turn = device();
    let key = "original_max_position_embeddings";
    for (name, section) in [
        ("gpt_oss-f32", json!({"rope_type": "yarn", "factor": 4.0})),
        (
            "apertus-f32",
            json!({
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0
            }),
        ),
    ] {
        let with = |inside: usize, outside: Option<usize>| {
            let set = |config: &mut Value| {
                let keys = config.as_object_mut().expect("an object");
                keys.remove("rope_scaling");
                keys.remove("rope_parameters");
                config["rope_scaling"] = section.clone();
                config["rope_scaling"][key] = json!(inside);
                if let Some(outside) = outside {
                    config[key] = json!(outside);
                }
            };
            bits(rewritten(name, |_| (), set).path())
        };
        let (short, long) = (with(16, None), with(128, None));
        assert!(short != long, "{name}");
        assert!(with(128, Some(16)) == short, "{name}");
        assert!(with(16, Some(128)) == long, "{name}");
    }
}

#[test]
fn only_hunyuan_scales_theta_by_the_alpha_of_dynamic_rope() {
    let _turn = device();
    let alpha = |kind: &'static str, alpha: f64| {
        move |config: &mut Value| {
            config["rope_scaling"] = json!({"type": kind, "factor": 1.0, "alpha": alpha});
        }
    };
    let of = |name: &str, kind, value| bits(rewritten(name, |_| (), alpha(kind, value)).path());
    assert!(of("qwen2-f32", "dynamic", 1000.0) == of("qwen2-f32", "dynamic", 1.0));
    assert!(of("hunyuan_v1_dense-f32", "dynamic", 1000.0) != of("hunyuan_v1_dense-f32", "dynamic", 1.0));
}

#[test]
fn an_output_head_in_the_files_is_used_even_if_config_ties_it() {
    let _turn = device();
    let own_head = bits(&model_folder("llama-f32"));
    let tied = |config: &mut Value| config["tie_word_embeddings"] = json!(true);
    assert!(bits(rewritten("llama-f32", |_| (), tied).path()) == own_head);
    // A head that equals the embedding counts as tied.
    let shared = bits(&model_folder("llama-tied-f32"));
    let twice = |tensors: &mut Tensors| {
        let embedding = tensors["model.embed_tokens.weight"].clone();
        tensors.insert("lm_head.weight".to_owned(), embedding);
    };
    assert!(bits(rewritten("llama-tied-f32", twice, |_| ()).path()) == shared);
}
