//! Loading: whatever is wrong with a folder, the answer is one error that names the file and the key.

use std::path::Path;

use mlx_core::Result;
use mlx_core::array::FloatPolicy;
use mlx_core::folder::ModelFolder;
use mlx_core::model;
use mlx_tests::{device, model_copy};
use serde_json::{Value, json};

/// Loads everything in a folder, as the engine does.
fn open(folder: &Path) -> Result<()> {
    ModelFolder::open(folder)?;
    model::load(folder, FloatPolicy::for_device()?, &mut |_, _| {}).map(drop)
}

/// The error of loading `name` after `damage`; it must mention all `words`.
fn assert_refused(name: &str, damage: impl FnOnce(&Path), words: &[&str]) {
    let _turn = device();
    let copy = model_copy(name);
    damage(copy.path());
    let message = open(copy.path()).expect_err("it must be refused").to_string();
    for word in words {
        assert!(message.contains(word), "{message:?} does not mention {word:?}");
    }
    assert!(!message.contains('\n'), "{message:?} is more than one line");
}

fn edit(file: &'static str, change: impl FnOnce(&mut Value)) -> impl FnOnce(&Path) {
    move |folder| {
        let path = folder.join(file);
        let text = std::fs::read(&path).expect("the file is there");
        let mut value = serde_json::from_slice(&text).expect("the file is json");
        change(&mut value);
        std::fs::write(&path, value.to_string()).expect("the file can be written");
    }
}

fn set(key: &'static str, to: Value) -> impl FnOnce(&Path) {
    edit("config.json", move |config| config[key] = to)
}

#[test]
fn keys_of_config_json_are_checked_by_name() {
    let name = "llama-f32";
    assert_refused(name, set("hidden_size", json!("wide")), &["config.json", "hidden_size", "wide"]);
    assert_refused(name, set("hidden_size", json!(-1)), &["config.json", "hidden_size", "-1"]);
    assert_refused(name, set("hidden_size", Value::Null), &["config.json", "hidden_size", "missing"]);
    assert_refused(name, set("num_hidden_layers", json!(0)), &["num_hidden_layers"]);
    assert_refused(name, set("num_hidden_layers", json!(1u64 << 40)), &["num_hidden_layers"]);
    assert_refused(name, set("num_key_value_heads", json!(3)), &["num_key_value_heads", "3"]);
    assert_refused(name, set("head_dim", json!(15)), &["head_dim", "even"]);
    assert_refused(name, set("hidden_act", json!("relu")), &["hidden_act", "relu"]);
    assert_refused(name, set("model_type", json!("nonesuch")), &["model_type", "nonesuch"]);
    assert_refused(name, set("rms_norm_eps", json!(0)), &["rms_norm_eps"]);
    assert_refused(name, set("rope_theta", json!("big")), &["rope_theta", "big"]);
    assert_refused(name, set("eos_token_id", json!(["x"])), &["config.json", "eos_token_id"]);
    let scaling = |value| set("rope_scaling", value);
    assert_refused(name, scaling(json!({"type": "wavy"})), &["rope_scaling.type", "wavy"]);
    assert_refused(name, scaling(json!({"rope_type": "linear"})), &["rope_scaling.factor", "missing"]);
    assert_refused(name, scaling(json!([1])), &["rope_scaling"]);
    assert_refused(name, set("quantization", json!({"bits": 4})), &["quantization", "not supported"]);
}

#[test]
fn generation_config_is_checked_by_name() {
    let file = "generation_config.json";
    assert_refused("llama-f32", edit(file, |it| it["temperature"] = json!(-2)), &[file, "temperature", "-2"]);
    assert_refused("llama-f32", edit(file, |it| it["top_p"] = json!("much")), &[file, "top_p", "much"]);
}

#[test]
fn missing_files_are_named() {
    let remove =
        |file: &'static str| move |folder: &Path| std::fs::remove_file(folder.join(file)).expect("a file");
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        assert_refused("llama-f32", remove(file), &[file]);
    }
    let shard = "model-00002-of-00002.safetensors";
    assert_refused("llama-mha-sharded-f32", remove(shard), &[shard]);
}

#[test]
fn weights_that_do_not_fit_the_config_are_named() {
    let name = "llama-f32";
    let (file, query) = ("model.safetensors", "model.layers.0.self_attn.q_proj.weight");
    assert_refused(name, set("head_dim", json!(18)), &[file, query, "[64, 32]", "[72, 32]"]);
    assert_refused(name, set("num_hidden_layers", json!(3)), &[file, "model.layers.2.", "missing"]);
    assert_refused(name, set("num_hidden_layers", json!(1)), &[file, "model.layers.1.", "no place"]);
    assert_refused(name, set("attention_bias", json!(true)), &[file, "q_proj.bias", "missing"]);
}

#[test]
fn a_lying_index_is_refused() {
    let (name, file) = ("llama-mha-sharded-f32", "model.safetensors.index.json");
    let norm = "model.norm.weight";
    let point = |to: &'static str| edit(file, move |index| index["weight_map"][norm] = json!(to));
    assert_refused(name, point("../secret.safetensors"), &[file, norm, "../secret"]);
    assert_refused(name, point("model-00001-of-00002.safetensors"), &[file, norm]);
    let forget = |index: &mut Value| drop(index["weight_map"].as_object_mut().expect("a map").remove(norm));
    assert_refused(name, edit(file, forget), &[file, norm]);
    assert_refused(name, edit(file, |index| index["weight_map"] = json!(7)), &[file, "weight_map"]);
}

/// A generator of positions; the tests must not differ from run to run.
fn scattered(seed: usize, below: usize) -> usize {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11) as usize % below
}

/// Damages `file` in many ways. Loading may succeed (a flipped bit of a weight is a weight) but never panics,
/// and a cut file is always refused by name.
fn assert_robust(file: &str, rounds: usize) {
    let _turn = device();
    let copy = model_copy("llama-f32");
    let path = copy.path().join(file);
    let good = std::fs::read(&path).expect("the file is there");
    // Where the structure is: everywhere in text, in front in safetensors.
    let fragile = good.len().min(6000);
    for round in 0..rounds {
        let mut bytes = good.clone();
        bytes[scattered(round, fragile)] ^= 1 << (round % 8);
        std::fs::write(&path, &bytes).expect("the file can be written");
        open(copy.path()).ok();
    }
    for round in 0..rounds {
        let length = scattered(round + rounds, good.len());
        std::fs::write(&path, &good[..length]).expect("the file can be written");
        let message = open(copy.path()).expect_err("a cut file must be refused").to_string();
        assert!(message.contains(file), "{message:?} does not name {file}");
    }
}

#[test]
fn damaged_weights_never_panic() {
    assert_robust("model.safetensors", 150);
}

#[test]
fn damaged_configs_never_panic() {
    assert_robust("config.json", 150);
    assert_robust("generation_config.json", 40);
}

#[test]
fn damaged_tokenizers_never_panic() {
    assert_robust("tokenizer.json", 100);
    assert_robust("tokenizer_config.json", 100);
}
