//! Loading: a fault in a model folder gives one error that names the file and the key.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use mlx_core::ModelFolder;
use mlx_core::Result;
use mlx_core::engine::{EngineOptions, Engines};
use mlx_core::model;
use mlx_core::weights::WeightPolicy;
use mlx_tests::tensors::{self, Tensor};
use mlx_tests::{device, model_copy};
use safetensors::Dtype;
use serde_json::{Value, json};

/// Loads everything in a folder, as the engine does.
fn open(folder: &Path) -> Result<()> {
    ModelFolder::open(folder)?;
    model::load(folder, WeightPolicy::for_device(false)?, &mut |_, _| {}).map(drop)
}

/// Checks that loading `name` after `damage` fails with an error that contains all `words`.
pub(crate) fn assert_refused(name: &str, damage: impl FnOnce(&Path), words: &[&str]) {
    let _turn = device();
    let copy = model_copy(name);
    damage(copy.path());
    let message = open(copy.path()).expect_err("it must be refused").to_string();
    for word in words {
        assert!(message.contains(word), "{message:?} does not mention {word:?}");
    }
    assert!(!message.contains('\n'), "{message:?} is more than one line");
}

pub(crate) fn edit(file: &'static str, change: impl FnOnce(&mut Value)) -> impl FnOnce(&Path) {
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
}

/// Changes the tensors of a checkpoint with one file: name to type, shape and bytes.
fn edit_tensors(change: impl FnOnce(&mut BTreeMap<String, Tensor>)) -> impl FnOnce(&Path) {
    move |folder| {
        let path = folder.join("model.safetensors");
        let mut all = tensors::read(&path);
        change(&mut all);
        tensors::write(&path, &all);
    }
}

const QUERY: &str = "model.layers.0.self_attn.q_proj";

/// Changes one tensor of the first layer's query projection.
fn edit_query(part: &str, change: impl FnOnce(&mut Tensor)) -> impl FnOnce(&Path) {
    let name = format!("{QUERY}.{part}");
    edit_tensors(move |tensors| change(tensors.get_mut(&name).expect("it is there")))
}

#[test]
fn inconsistent_weights_scales_and_biases_are_named() {
    let name = "llama-q4-f16";
    let remove = |part: &'static str| {
        edit_tensors(move |tensors| drop(tensors.remove(&format!("{QUERY}.{part}")).expect("it is there")))
    };
    let [weight, scales, biases] = ["weight", "scales", "biases"].map(|part| format!("{QUERY}.{part}"));
    assert_refused(name, remove("weight"), &["model.safetensors", &weight, "missing", "[64, 8]"]);
    assert_refused(name, remove("scales"), &["model.safetensors", &weight, "U32", "no scales"]);
    assert_refused(name, remove("biases"), &["model.safetensors", &biases, "missing", "[64, 1]"]);
    let halve = |(_, shape, bytes): &mut Tensor| {
        shape[0] /= 2;
        bytes.truncate(bytes.len() / 2);
    };
    assert_refused(name, edit_query("weight", halve), &[&weight, "[32, 8]", "[64, 8]", "affine 4 bits"]);
    assert_refused(name, edit_query("scales", halve), &[&scales, "[32, 1]", "[64, 1]", "groups of 64"]);
    assert_refused(name, edit_query("biases", halve), &[&biases, "[32, 1]", "[64, 1]"]);
    let transpose = |(_, shape, _): &mut Tensor| shape.reverse();
    assert_refused(name, edit_query("weight", transpose), &[&weight, "[8, 64]"]);
    assert_refused(name, edit_query("weight", |it| it.0 = Dtype::F32), &[&weight, "F32", "U32"]);
    assert_refused(name, edit_query("scales", |it| it.0 = Dtype::I16), &[&scales, "I16"]);
    let with_biases = |tensors: &mut BTreeMap<String, Tensor>| {
        let scales = tensors[&format!("{QUERY}.scales")].clone();
        tensors.insert(format!("{QUERY}.biases"), scales);
    };
    assert_refused("llama-mxfp4-bf16", edit_tensors(with_biases), &[&biases, "does not use"]);
    assert_refused("llama-mxfp4-bf16", edit_query("scales", |it| it.0 = Dtype::I8), &[&scales, "I8", "U8"]);
}

#[test]
fn quantization_settings_that_do_not_match_the_tensors_are_named() {
    let name = "llama-q4-f16";
    let entry = |key: &'static str, to: Value| edit("config.json", move |it| it["quantization"][key] = to);
    let file = "config.json";
    assert_refused(name, entry("bits", json!(7)), &[file, "quantization.bits", "7", "2, 3, 4, 5, 6, 8"]);
    assert_refused(name, entry("bits", json!("4")), &[file, "quantization.bits", "\"4\""]);
    assert_refused(name, entry("bits", Value::Null), &[file, "quantization.bits", "missing"]);
    assert_refused(name, entry("group_size", json!(48)), &[file, "quantization.group_size", "48"]);
    assert_refused(name, entry("mode", json!("wavy")), &[file, "quantization.mode", "wavy", "mxfp4"]);
    assert_refused(name, entry("mode", json!("mxfp4")), &[file, "quantization.group_size", "64", "32"]);
    assert_refused(name, set("quantization", json!("4bit")), &[file, "quantization", "4bit", "object"]);
    assert_refused(name, set("quantize_activations", json!(true)), &[file, "quantize_activations"]);
    assert_refused(name, entry(QUERY, json!({"bits": 9})), &[file, QUERY, "bits", "9"]);
    assert_refused(name, entry(QUERY, json!({"global_scale": true})), &[file, QUERY, "global_scale"]);
    // The settings are valid but do not match these tensors.
    let embedding = "model.embed_tokens";
    assert_refused(name, entry("bits", json!(8)), &[embedding, "[320, 8]", "[320, 16]", "affine 8 bits"]);
    assert_refused(name, entry("group_size", json!(32)), &[embedding, ".scales", "[320, 1]", "[320, 2]"]);
    assert_refused(name, entry("group_size", json!(128)), &[embedding, "64 numbers", "groups of 128"]);
    assert_refused(name, entry(QUERY, json!({"bits": 8})), &[QUERY, ".weight", "affine 8 bits"]);
    assert_refused(name, entry(QUERY, json!(false)), &[QUERY, ".weight", "U32", "quantization"]);
    let nothing = |config: &mut Value| {
        config.as_object_mut().expect("an object").retain(|key, _| !key.starts_with("quantization"));
    };
    assert_refused(name, edit(file, nothing), &["model.safetensors", embedding, "U32", "quantization"]);
    let mode = |to: &'static str, bits: usize| {
        set("quantization", json!({"mode": to, "bits": bits, "group_size": 32}))
    };
    assert_refused("llama-tied-q4-f32", mode("mxfp4", 4), &[".scales", "F32", "U8"]);
    assert_refused("llama-mxfp4-bf16", mode("affine", 4), &[".scales", "U8"]);
    assert_refused("llama-mxfp4-bf16", mode("mxfp8", 8), &[".weight", "mxfp8 8 bits"]);
    assert_refused("llama-mixed-f32", entry(QUERY, json!({"bits": 4})), &[QUERY, ".weight", "[64, 8]"]);
}

#[test]
fn checkpoints_of_unsupported_quantization_tools_are_refused_by_name() {
    for method in ["bitsandbytes", "mxfp4", "aqlm", "hqq", "bitnet", "quark"] {
        let config = json!({"quant_method": method, "bits": 4, "group_size": 128});
        let words = [
            "config.json",
            "quantization_config.quant_method",
            method,
            "compressed-tensors",
            "mlx-community",
        ];
        assert_refused("llama-f32", set("quantization_config", config.clone()), &words);
        let nested = set("text_config", json!({"quantization_config": config}));
        assert_refused("llama-f32", nested, &["text_config.quantization_config.quant_method", method]);
    }
    assert_refused(
        "llama-f32",
        set("compression_config", json!({})),
        &["compression_config", "mlx-community"],
    );
    let write =
        |file: &'static str| move |folder: &Path| std::fs::write(folder.join(file), "{}").expect("a file");
    assert_refused("llama-f32", write("hf_quant_config.json"), &["hf_quant_config.json", "ModelOpt"]);
    let gguf = |folder: &Path| {
        std::fs::rename(folder.join("model.safetensors"), folder.join("model.Q4_K_M.gguf")).expect("a file");
    };
    assert_refused("llama-f32", gguf, &["model.Q4_K_M.gguf", "safetensors"]);
}

/// Older MLX tools wrote only one of the keys.
#[test]
fn quantization_is_read_under_either_key() {
    let _turn = device();
    let copy = model_copy("llama-q4-f16");
    edit("config.json", |config| drop(config.as_object_mut().expect("an object").remove("quantization")))(
        copy.path(),
    );
    open(copy.path()).expect("it loads");
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
fn weights_that_do_not_match_the_config_are_named() {
    let name = "llama-f32";
    let (file, query) = ("model.safetensors", "model.layers.0.self_attn.q_proj.weight");
    assert_refused(name, set("head_dim", json!(18)), &[file, query, "[64, 32]", "[72, 32]"]);
    assert_refused(name, set("num_hidden_layers", json!(3)), &[file, "model.layers.2.", "missing"]);
    assert_refused(name, set("num_hidden_layers", json!(1)), &[file, "model.layers.1.", "does not use"]);
    assert_refused(name, set("attention_bias", json!(true)), &[file, "q_proj.bias", "missing"]);
}

/// The headers of the shards determine the file of each tensor. The index may be wrong, incomplete or missing if all tensors exist.
#[test]
fn a_wrong_index_is_no_fault_while_all_tensors_are_there() {
    let (name, file) = ("llama-mha-sharded-f32", "model.safetensors.index.json");
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let norm = "model.norm.weight";
    let map = |change: fn(&mut serde_json::Map<String, Value>)| {
        edit(file, move |index| change(index["weight_map"].as_object_mut().expect("a map")))
    };
    let loads = |damage: &dyn Fn(&Path)| {
        let _turn = device();
        let copy = model_copy(name);
        damage(copy.path());
        open(copy.path()).expect("it loads");
    };
    loads(&|folder| map(|map| drop(map.remove("model.norm.weight")))(folder));
    loads(&|folder| {
        map(|map| {
            map.insert("mtp.fc.weight".to_owned(), json!("model-00001-of-00002.safetensors"));
            map.insert("mtp.norm.weight".to_owned(), json!("mtp.safetensors"));
            map.insert("model.norm.weight".to_owned(), json!("model-00001-of-00002.safetensors"));
        })(folder);
    });
    loads(&|folder| std::fs::remove_file(folder.join(file)).expect("a file"));
    // A tensor that neither the index nor the architecture names is ignored.
    loads(&|folder| {
        let mut tensors = tensors::read(&folder.join(first));
        tensors.insert("left.over".to_owned(), (Dtype::F32, vec![1], vec![0; 4]));
        tensors::write(&folder.join(first), &tensors);
    });
    // The error names the missing file or tensor.
    let without =
        |file: &'static str| move |folder: &Path| std::fs::remove_file(folder.join(file)).expect("a file");
    assert_refused(name, without(second), &[file, "is missing", second]);
    let without_both = |folder: &Path| {
        without(file)(folder);
        without(second)(folder);
    };
    assert_refused(name, without_both, &["file 2 of 2", first]);
    let lost = |folder: &Path| {
        for shard in [first, second] {
            let mut tensors = tensors::read(&folder.join(shard));
            tensors.remove(norm);
            tensors::write(&folder.join(shard), &tensors);
        }
    };
    assert_refused(name, lost, &[file, norm, "is missing"]);
    let point = |to: &'static str| edit(file, move |index| index["weight_map"][norm] = json!(to));
    assert_refused(name, point("../secret.safetensors"), &[file, norm, "../secret"]);
    assert_refused(name, edit(file, |index| index["weight_map"] = json!(7)), &[file, "weight_map"]);
}

/// Returns a deterministic pseudo-random position.
pub(crate) fn scattered(seed: usize, below: usize) -> usize {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11) as usize % below
}

/// Damages `file` of `model` in many ways. Loading may succeed (a flipped bit of a weight is a weight) but never panics. A truncated file
/// is always rejected by name.
fn assert_robust(model: &str, file: &str, rounds: usize) {
    let _turn = device();
    let copy = model_copy(model);
    let path = copy.path().join(file);
    let good = std::fs::read(&path).expect("the file is there");
    // Damage the structure: everywhere in text, at the start of safetensors.
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
    assert_robust("llama-f32", "model.safetensors", 150);
    assert_robust("llama-mixed-f32", "model.safetensors", 150);
}

#[test]
fn damaged_configs_never_panic() {
    assert_robust("llama-f32", "config.json", 150);
    assert_robust("llama-mixed-f32", "config.json", 150);
}

#[test]
fn damaged_tokenizers_never_panic() {
    assert_robust("llama-f32", "tokenizer.json", 100);
    assert_robust("llama-f32", "tokenizer_config.json", 100);
}

#[test]
fn a_shared_model_is_loaded_once_and_a_changed_folder_is_detected() {
    let _turn = device();
    let copy = model_copy("llama-f32");
    let reads = Arc::new(AtomicUsize::new(0));
    let engines = Engines::default();
    let ask = || {
        let reads = Arc::clone(&reads);
        let progress = move |read, all| {
            if read == all {
                reads.fetch_add(1, Ordering::Relaxed);
            }
        };
        engines.start(copy.path(), &EngineOptions::single(), progress).expect("it loads")
    };
    let (first, second) = (ask(), ask());
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    let config = copy.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("it is there");
    std::fs::write(&config, text + "\n").expect("it can be written");
    let third = ask();
    assert_eq!(reads.load(Ordering::Relaxed), 2, "the folder has changed");
    drop((first, second, third));
    drop(ask());
    assert_eq!(reads.load(Ordering::Relaxed), 3, "its last user was gone");
}

#[test]
fn loading_one_model_does_not_block_another() {
    let _turn = device();
    let (slow, quick) = (model_copy("llama-f32"), model_copy("llama-f32"));
    let ((begun, begins), (go, goes)) = (channel(), channel::<()>());
    let path = slow.path().to_path_buf();
    let engines = Arc::new(Engines::default());
    let of_thread = Arc::clone(&engines);
    let loading = std::thread::spawn(move || {
        let progress = move |_, _| {
            begun.send(()).ok();
            // Blocks until the other end is dropped.
            goes.recv().ok();
        };
        of_thread.start(&path, &EngineOptions::single(), progress).map(drop)
    });
    begins.recv().expect("it loads");
    engines.start(quick.path(), &EngineOptions::single(), |_, _| {}).expect("it loads meanwhile");
    assert!(!loading.is_finished());
    drop(go);
    loading.join().expect("no panic").expect("it loads");
}
