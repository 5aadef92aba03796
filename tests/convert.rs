//! Conversion: tensors equal mlx-lm's byte for byte, a loaded result equals quantization in memory, and nothing is overwritten by accident.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use mlx_core::array;
use mlx_core::backend::Backend;
use mlx_core::config::Fields;
use mlx_core::convert::{ConvertOptions, EmbeddingBits, Quality, Report, convert};
use mlx_core::model;
use mlx_core::quantization::QuantizedMatrix;
use mlx_core::quantization::{Mode, QuantScheme, QuantizationConfig};
use mlx_core::weights::{FloatPolicy, WeightPolicy};
use mlx_tests::tensors::{self, Tensor};
use mlx_tests::{Dice, device, golden_folder, model_folder};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::families::logits_in_passes;

/// mlx-vlm's name prefixes for towers.
pub(crate) const TOWERS: [&str; 4] =
    ["vision_tower.", "multi_modal_projector.", "embed_vision.", "vision_embedder."];

pub(crate) const SHARDS: u64 = 1 << 40;

pub(crate) fn recorded() -> Value {
    let text = fs::read_to_string(golden_folder().join("expected/convert.json")).expect("a fixture");
    serde_json::from_str(&text).expect("the fixture is json")
}

fn shape(value: &Value) -> Vec<usize> {
    serde_json::from_value(value.clone()).expect("a shape")
}

/// Returns a checkpoint with the contents that tests/golden/convert.py generates.
pub(crate) fn made_up(source: &Value) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("config.json"), source["config"].to_string()).expect("it can be written");
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(model_folder("llama-f32").join(file), folder.path().join(file)).expect("it can be copied");
    }
    let made = source["tensors"].as_array().expect("a list").iter().enumerate().map(|(seed, tensor)| {
        let (mut dice, shape) = (Dice::new(seed as u64), shape(&tensor[1]));
        let center = if shape.len() == 1 { 1.0 } else { 0.0 };
        let mut number = || (dice.below(2001) as f32 - 1000.0) / 8192.0 + center;
        let bytes = (0..shape.iter().product()).flat_map(|_| number().to_le_bytes()).collect();
        (tensor[0].as_str().expect("a name").to_owned(), (Dtype::F32, shape, bytes))
    });
    tensors::write(&folder.path().join("model.safetensors"), &made.collect());
    folder
}

pub(crate) fn options(case: &Value) -> ConvertOptions {
    let size = |key: &str| case[key].as_u64().map(|number| number as usize);
    let mode: Mode = case["mode"].as_str().unwrap_or("affine").parse().expect("a mode");
    let packing = QuantScheme::new(mode, size("bits"), size("group")).expect("it is possible");
    let quantizes = size("bits").is_some() || case["mode"].is_string();
    let rules = case["rules"].as_array().into_iter().flatten();
    ConvertOptions {
        scheme: quantizes.then_some(packing),
        rules: rules.map(|rule| rule.as_str().expect("a text").parse().expect("a rule")).collect(),
        embedding_bits: EmbeddingBits::Same,
        adapter: None,
        dtype: case["dtype"].as_str().map(|name| if name == "float16" { Dtype::F16 } else { Dtype::BF16 }),
        shard_bytes: SHARDS,
        force: false,
    }
}

pub(crate) fn run(source: &Path, target: &Path, options: &ConvertOptions) -> mlx_core::Result<Report> {
    let report = convert(source, target, options, &mut |_, _| ControlFlow::Continue(()))?;
    Ok(report.expect("it was not stopped"))
}

/// Returns all tensors of a folder.
pub(crate) fn read(folder: &Path) -> BTreeMap<String, Tensor> {
    let index = fs::read(folder.join("model.safetensors.index.json")).expect("an index");
    let index: Value = serde_json::from_slice(&index).expect("json");
    let map = index["weight_map"].as_object().expect("a map");
    let files: BTreeSet<&str> = map.values().filter_map(Value::as_str).collect();
    let found: BTreeMap<String, Tensor> =
        files.iter().flat_map(|file| tensors::read(&folder.join(file))).collect();
    assert!(found.keys().eq(map.keys().collect::<BTreeSet<_>>()), "the index must list every tensor");
    let bytes: usize = found.values().map(|(.., bytes)| bytes.len()).sum();
    assert_eq!(index["metadata"]["total_size"], bytes);
    found
}

/// Returns zlib's CRC-32.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ ((sum & 1) * 0xEDB8_8320))
    };
    !bytes.iter().fold(!0, step)
}

fn quantization(folder: &Path) -> QuantizationConfig {
    QuantizationConfig::read(&Fields::read(&folder.join("config.json")).expect("a config"))
        .expect("a quantization")
}

#[test]
fn every_tensor_equals_mlx_lms_byte_for_byte() {
    let _turn = device();
    let golden = recorded();
    for case in golden["cases"].as_array().expect("a list") {
        let source = made_up(&golden["sources"][case["source"].as_str().expect("a name")]);
        let target = source.path().join("out");
        run(source.path(), &target, &options(case)).expect("it can be converted");
        let mut found = read(&target);
        // mlx-lm drops this tensor and therefore selects other experts than the model was trained with.
        found.retain(|name, _| !name.ends_with("moe_statics.e_score_correction_bias"));
        // It also drops towers.
        found.retain(|name, _| !TOWERS.iter().any(|part| name.starts_with(part)));
        let about = |(name, (dtype, shape, bytes)): (&String, &Tensor)| {
            (name.clone(), json!([dtype, shape, crc32(bytes)]))
        };
        let found: BTreeMap<String, Value> = found.iter().map(about).collect();
        let expected: BTreeMap<String, Value> =
            serde_json::from_value(case["tensors"].clone()).expect("tensors");
        let names = format!("{} {:?}", case["source"], options(case));
        assert!(found.keys().eq(expected.keys()), "{names}: {:?}", found.keys());
        for (name, tensor) in &expected {
            assert_eq!(&found[name], tensor, "{names}: {name}");
        }
        // config.json has the same settings as mlx-lm's for every module.
        let theirs = tempfile::tempdir().expect("a temporary folder");
        let config = json!({ "quantization": case["quantization"] });
        fs::write(theirs.path().join("config.json"), config.to_string()).expect("it can be written");
        let [ours, theirs] = [target.as_path(), theirs.path()].map(quantization);
        for module in found.keys().filter_map(|name| name.strip_suffix(".weight")) {
            let scaled = found.contains_key(&format!("{module}.scales"));
            assert_eq!(ours.of(module, scaled), theirs.of(module, scaled), "{names}: {module}");
        }
    }
}

/// Returns a checkpoint with the matrices of `source` quantized in memory.
fn in_memory(source: &Path, quantization: &QuantizationConfig, config: &Path) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut all = BTreeMap::new();
    for (name, (dtype, shape, bytes)) in tensors::read(&source.join("model.safetensors")) {
        let module = name.strip_suffix(".weight").filter(|_| shape.len() == 2);
        let Some((module, packing)) =
            module.and_then(|module| Some((module, quantization.of(module, true)?)))
        else {
            all.insert(name, (dtype, shape, bytes));
            continue;
        };
        let sides: Vec<i32> = shape.iter().map(|&side| side as i32).collect();
        let matrix = array::floats(&bytes, dtype, Dtype::F32, &sides).expect("floats");
        let parts = QuantizedMatrix::quantize(&matrix, packing)
            .expect("rows are a multiple of the group size")
            .to_bytes()
            .expect("bytes");
        let scales = if packing.has_biases() { Dtype::F32 } else { Dtype::U8 };
        let widths = [packing.words(shape[1]).expect("whole words"), shape[1] / packing.group_size];
        for ((part, dtype), bytes) in
            [("weight", Dtype::U32), ("scales", scales), ("biases", scales)].into_iter().zip(parts)
        {
            let width = widths[usize::from(part != "weight")];
            all.insert(format!("{module}.{part}"), (dtype, vec![shape[0], width], bytes));
        }
    }
    tensors::write(&folder.path().join("model.safetensors"), &all);
    fs::copy(config, folder.path().join("config.json")).expect("it can be copied");
    folder
}

#[test]
fn a_converted_model_has_the_logits_of_quantization_in_memory() {
    let _turn = device();
    let source = made_up(&recorded()["sources"]["llama"]);
    let tokens: Vec<u32> = (0..24).map(|token| 7 + 11 * token).collect();
    let cases = [
        json!({"bits": 4}),
        json!({"bits": 8}),
        json!({"bits": 3, "group": 32}),
        json!({"mode": "mxfp4"}),
        json!({"bits": 4, "rules": ["*.down_proj=6:32", "lm_head=8"]}),
    ];
    for (number, case) in cases.iter().enumerate() {
        let target = source.path().join(number.to_string());
        // Every other case writes several files.
        let shard_bytes = if number % 2 == 0 { SHARDS } else { 20_000 };
        let report = run(source.path(), &target, &ConvertOptions { shard_bytes, ..options(case) })
            .expect("it converts");
        assert_eq!(report.shards > 1, number % 2 == 1, "{report:?}");
        let memory = in_memory(source.path(), &quantization(&target), &target.join("config.json"));
        for keep_packed in [true, false] {
            let policy = WeightPolicy { floats: FloatPolicy::F32, keep_packed, backend: Backend::CPU };
            let [one, other] = [target.as_path(), memory.path()].map(|folder| {
                let model = model::load(folder, policy, &mut |_, _| {}).expect("it loads");
                let logits = logits_in_passes(model.as_ref(), &tokens, &[]);
                logits.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            });
            assert!(one == other, "{case}, packed {keep_packed}");
        }
    }
}

#[test]
fn a_matrix_is_converted_in_parts() {
    let _turn = device();
    let source = made_up(&recorded()["sources"]["llama-tied"]);
    let (rows, inputs) = (70_000_usize, 64_usize);
    let mut all = tensors::read(&source.path().join("model.safetensors"));
    let mut dice = Dice::new(1);
    let bytes = (0..rows * inputs).flat_map(|_| (dice.below(2001) as f32 - 1000.0).to_le_bytes()).collect();
    all.insert("model.embed_tokens.weight".to_owned(), (Dtype::F32, vec![rows, inputs], bytes));
    tensors::write(&source.path().join("model.safetensors"), &all);
    let target = source.path().join("out");
    let mut seen = Vec::new();
    let progress = &mut |done, total| {
        seen.push((done, total));
        ControlFlow::Continue(())
    };
    convert(source.path(), &target, &options(&json!({"bits": 4, "group": 32})), progress)
        .expect("it can be converted");
    assert!(seen.is_sorted() && seen.last().is_some_and(|(done, total)| done == total), "{seen:?}");
    assert!(seen.len() > all.len(), "the largest took more than one step");
    let memory = in_memory(source.path(), &quantization(&target), &target.join("config.json"));
    let expected = tensors::read(&memory.path().join("model.safetensors"));
    assert_eq!(read(&target)["model.embed_tokens.weight"], expected["model.embed_tokens.weight"]);
}

#[test]
fn an_impossible_conversion_is_refused_and_leaves_no_files() {
    let _turn = device();
    let golden = recorded();
    let source = made_up(&golden["sources"]["llama"]);
    let parent = tempfile::tempdir().expect("a temporary folder");
    let target = parent.path().join("out");
    let refused = |source: &Path, case: Value| {
        run(source, &target, &options(&case)).expect_err("it is refused").to_string()
    };
    let quantized = refused(&model_folder("llama-q4-f16"), json!({"bits": 4}));
    assert!(quantized.contains("config.json") && quantized.contains("already quantized"), "{quantized}");
    let nothing = refused(source.path(), json!({"bits": 4, "rules": ["*.w1=8"]}));
    assert!(nothing.contains("*.w1=8") && nothing.contains("model.layers.1.self_attn.v_proj"), "{nothing}");
    let group = refused(source.path(), json!({"bits": 4, "rules": ["*.q_proj=4:128"]}));
    assert!(group.contains("rows of 64"), "{group}");
    let width = refused(&model_folder("qwen3_moe-f32"), json!({"bits": 4, "group": 128}));
    assert!(width.contains("multiple of the group size"), "{width}");
    let stopped =
        convert(source.path(), &target, &options(&json!({"bits": 4})), &mut |_, _| ControlFlow::Break(()));
    assert_eq!(stopped.expect("that is no error"), None);
    assert_eq!(fs::read_dir(parent.path()).expect("a folder").count(), 0);
}

#[test]
fn nothing_is_overwritten_by_accident() {
    let _turn = device();
    let source = made_up(&recorded()["sources"]["llama"]);
    let target = source.path().join("out");
    let (four, eight) = (options(&json!({"bits": 4})), options(&json!({"bits": 8})));
    let forced = ConvertOptions { force: true, ..eight.clone() };
    fs::create_dir(&target).expect("a folder");
    run(source.path(), &target, &four).expect("an empty folder will do");
    fs::write(target.join("notes.txt"), "mine").expect("a file");
    let before = read(&target);
    run(source.path(), &target, &eight).expect_err("it is not empty");
    run(source.path(), source.path(), &forced).expect_err("the target is the source");
    fs::write(target.join("model-00001-of-00002.safetensors"), "old").expect("a file");
    let stale =
        run(source.path(), &target, &forced).expect_err("stale weights would be loaded, too").to_string();
    assert!(stale.contains("model-00001-of-00002.safetensors"), "{stale}");
    assert_eq!(read(&target), before);
    fs::remove_file(target.join("model-00001-of-00002.safetensors")).expect("it is there");
    run(source.path(), &target, &forced).expect("that is what --force is for");
    assert_ne!(read(&target), before);
    assert_eq!(fs::read_to_string(target.join("notes.txt")).expect("it is there"), "mine");
    let left: Vec<_> =
        fs::read_dir(source.path()).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("partial")), "{left:?}");
}

#[test]
fn a_quantized_model_can_be_cast_and_split() {
    let _turn = device();
    let target = tempfile::tempdir().expect("a temporary folder");
    let source = model_folder("llama-q4-f16");
    let cast = ConvertOptions { dtype: Some(Dtype::BF16), shard_bytes: 30_000, ..options(&json!({})) };
    let report = run(&source, target.path(), &cast).expect("it can be cast");
    assert!(report.shards > 1 && report.quantized == 0 && report.skipped.is_empty(), "{report:?}");
    let before = tensors::read(&source.join("model.safetensors"));
    for (name, (dtype, shape, bytes)) in read(target.path()) {
        let (before, same_shape, words) = &before[&name];
        assert_eq!(&shape, same_shape);
        assert_eq!(dtype, if *before == Dtype::U32 { Dtype::U32 } else { Dtype::BF16 }, "{name}");
        assert!(dtype != Dtype::U32 || &bytes == words);
    }
    let fields = Fields::read(&target.path().join("config.json")).expect("a config");
    assert_eq!(fields.optional_text("torch_dtype").expect("a text"), Some("bfloat16"));
    model::load(target.path(), WeightPolicy::for_device(false).expect("a device"), &mut |_, _| {})
        .expect("it loads");
}

/// A small model keeps 8 bits for its embedding, because fewer cost much quality. An option gives mlx-lm's bytes.
#[test]
fn the_embedding_and_the_head_of_a_small_model_have_8_bits_unless_told() {
    let _turn = device();
    let golden = recorded();
    let four =
        ConvertOptions { embedding_bits: EmbeddingBits::Usual, ..options(&json!({"bits": 4, "group": 32})) };
    let bits = |target: &Path, module: &str| quantization(target).of(module, true).expect("quantized").bits;
    for (source, tables) in
        [("llama", &["model.embed_tokens", "lm_head"][..]), ("llama-tied", &["model.embed_tokens"])]
    {
        let source = made_up(&golden["sources"][source]);
        let target = source.path().join("usual");
        let report = run(source.path(), &target, &four).expect("it converts");
        assert_eq!(report.embedding.map(|scheme| (scheme.bits, scheme.group_size)), Some((8, 32)));
        assert_eq!(bits(&target, "model.layers.0.mlp.down_proj"), 4);
        assert!(tables.iter().all(|table| bits(&target, table) == 8));
        model::load(&target, WeightPolicy::for_device(false).expect("a device"), &mut |_, _| {})
            .expect("it loads");
        for (name, changed, expected) in [
            ("six", ConvertOptions { embedding_bits: EmbeddingBits::Bits(6), ..four.clone() }, 6),
            ("same", ConvertOptions { embedding_bits: EmbeddingBits::Same, ..four.clone() }, 4),
            ("rule", ConvertOptions { rules: vec!["*=4".parse().expect("a rule")], ..four.clone() }, 4),
        ] {
            let target = source.path().join(name);
            let report = run(source.path(), &target, &changed).expect("it converts");
            assert!(tables.iter().all(|table| bits(&target, table) == expected), "{name}");
            assert_eq!(report.embedding.is_some(), name == "six", "{name}");
        }
    }
}

/// The measured loss is zero without quantization, and not zero in 2 bits.
#[test]
fn the_loss_of_a_conversion_is_measured() {
    let _turn = device();
    let target = tempfile::tempdir().expect("a temporary folder");
    let source = model_folder("llama-f32");
    let measure = |name: &str, case: Value| {
        let target = target.path().join(name);
        run(&source, &target, &options(&case)).expect("it converts");
        Quality::measure(&source, None, &target).expect("both run here")
    };
    let same = measure("same", json!({}));
    assert!(same.tokens == 256 && same.before > 2.0 && same.loss() == 0.0, "{same:?}");
    let two = measure("two", json!({"bits": 2, "group": 32}));
    assert!(two.before.to_bits() == same.before.to_bits() && two.loss().abs() > 1e-3, "{two:?}");
}

/// Files of sentence-transformers and chat templates in subfolders are copied with the model.
#[test]
fn small_files_in_folders_are_copied() {
    let _turn = device();
    let source = made_up(&recorded()["sources"]["llama"]);
    let kept = [
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "preprocessor_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "additional_chat_templates/tools.jinja",
    ];
    let left = ["onnx/model.onnx", "onnx/config.json", "2_Dense/pytorch_model.bin", ".cache/x.json"];
    for file in kept.iter().chain(&left) {
        let path = source.path().join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        fs::write(path, file).expect("it can be written");
    }
    let target = tempfile::tempdir().expect("a temporary folder");
    for (name, force) in [("new", false), ("new", true)] {
        let target = target.path().join(name);
        run(source.path(), &target, &ConvertOptions { force, ..options(&json!({"bits": 4})) })
            .expect("it converts");
        for file in kept {
            assert_eq!(fs::read_to_string(target.join(file)).expect("it was copied"), file);
        }
        assert!(!left.iter().any(|file| target.join(file).exists()));
    }
}
