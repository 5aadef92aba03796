//! Conversions of vision models keep their towers, with mlx-vlm's names and layouts.

use std::fs;
use std::path::Path;

use chat_format::Image;
use mlx_core::ModelFolder;
use mlx_core::array::host;
use mlx_core::convert::{ConvertOptions, EmbeddingBits};
use mlx_core::engine::EngineOptions;
use mlx_core::model::Vision;
use mlx_core::quantization::{Mode, QuantScheme};
use mlx_core::weights::FloatPolicy;
use mlx_tests::pictures::{
    MODELS, answer, folder, golden, load, load_from, messages, noise, numbers, prompt, start_from,
};
use mlx_tests::tensors::{self, Tensor};
use mlx_tests::{device, model_folder};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::convert::{SHARDS, TOWERS, read, run};

pub(crate) const PLAIN: ConvertOptions = ConvertOptions {
    scheme: None,
    rules: Vec::new(),
    embedding_bits: EmbeddingBits::Same,
    adapter: None,
    dtype: None,
    shard_bytes: SHARDS,
    force: false,
};

pub(crate) fn in_bits(bits: usize) -> ConvertOptions {
    let scheme = QuantScheme::new(Mode::Affine, Some(bits), Some(32)).expect("it is possible");
    ConvertOptions { scheme: Some(scheme), ..PLAIN }
}

fn config(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join("config.json")).expect("a config");
    serde_json::from_str(&text).expect("JSON")
}

fn features(vision: &Vision, image: &Image, folder: &Path) -> Vec<f32> {
    let processor = ModelFolder::open(folder).expect("a folder").images.expect("it sees");
    let resized = processor.resized(image).expect("it has a size");
    let of_part = |part| host::<f32>(&vision.features(part).expect("it is seen")).expect("numbers").to_vec();
    resized.parts.iter().flat_map(of_part).collect()
}

/// Returns the largest difference of features, relative to their spread.
fn worst(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let bounds = |pick: fn(f32, f32) -> f32| theirs.iter().copied().reduce(pick).expect("numbers");
    let differences = ours.iter().zip(theirs).map(|(one, other)| (one - other).abs());
    differences.fold(0.0, f32::max) / (bounds(f32::max) - bounds(f32::min))
}

fn is_of_tower(name: &str) -> bool {
    TOWERS.iter().any(|part| name.starts_with(part))
}

/// In MLX's layout, color channels come after rows and columns.
#[test]
fn what_a_model_sees_and_answers_is_the_same_when_its_files_are_converted() {
    let _turn = device();
    for model in MODELS.into_iter().chain(["qwen3_5_moe-f32", "qwen3_vl_moe-f32", "gemma4_unified-f32"]) {
        let (target, golden) = (tempfile::tempdir().expect("a folder"), golden(model));
        let report = run(&folder(model), target.path(), &PLAIN).expect("it converts");
        assert!(report.left_out.is_empty(), "{model}: {report:?}");
        let found = read(target.path());
        let other = found.keys().find(|name| !name.starts_with("language_model.") && !is_of_tower(name));
        assert_eq!(other, None, "{model}: mlx-vlm has no such name");
        let kernels = found.iter().filter(|(name, (_, shape, _))| is_of_tower(name) && shape.len() > 3);
        for (name, (_, shape, _)) in kernels {
            assert_eq!(shape.last(), Some(&3), "{model}: {name}");
        }
        let (before, after) = (load(model), load_from(target.path()));
        for image in &golden.images {
            let [ours, theirs] = [(&after, target.path()), (&before, &folder(model))]
                .map(|(vision, folder)| features(vision, image, folder));
            assert!(ours == theirs, "{model}: the towers differ");
        }
        let engine = start_from(target.path(), &EngineOptions::default());
        for case in &golden.cases {
            let prompt = prompt(&engine, messages(&golden, case));
            assert_eq!(prompt.tokens, numbers::<u32>(&case["prompt_ids"]), "{model}");
            let expected = numbers::<u32>(&case["tokens"]);
            assert_eq!(answer(&engine, &prompt, expected.len()).ids(), expected, "{model}");
        }
    }
}

/// The text model is quantized as usual, and answers about pictures are the same with its weights unpacked.
#[test]
fn a_tower_stays_in_floats_where_its_text_is_quantized() {
    let _turn = device();
    for model in MODELS.into_iter().chain(["gemma4_unified-f32"]) {
        let (target, golden) = (tempfile::tempdir().expect("a folder"), golden(model));
        let report = run(&folder(model), target.path(), &in_bits(4)).expect("it converts");
        assert!(report.quantized > 0, "{model}: {report:?}");
        assert!(!report.skipped.iter().any(|name| is_of_tower(name)), "{model}: {report:?}");
        let found = read(target.path());
        assert!(found.keys().any(|name| name.starts_with("language_model.") && name.ends_with(".scales")));
        for (name, (dtype, ..)) in found.iter().filter(|(name, _)| is_of_tower(name)) {
            assert_eq!(*dtype, Dtype::F32, "{model}: {name}");
        }
        assert_eq!(config(target.path())["vision_config"], config(&folder(model))["vision_config"]);
        let image = &golden.images[4];
        let [ours, theirs] = [(load_from(target.path()), target.path()), (load(model), &folder(model))]
            .map(|(vision, folder)| features(&vision, image, folder));
        assert!(ours == theirs, "{model}: the towers differ");
        let packed = start_from(target.path(), &EngineOptions::default());
        let floats = EngineOptions { dtype: Some(FloatPolicy::F32), ..EngineOptions::default() };
        let unpacked = start_from(target.path(), &floats);
        for case in &golden.cases {
            let prompt = prompt(&packed, messages(&golden, case));
            assert_eq!(prompt.tokens, numbers::<u32>(&case["prompt_ids"]), "{model}");
            let [one, other] = [&packed, &unpacked].map(|engine| answer(engine, &prompt, 12));
            assert_eq!(one.ids(), other.ids(), "{model}");
        }
    }
}

/// `--dtype` also casts the tower.
#[test]
fn a_tower_is_cast_with_its_text() {
    let _turn = device();
    for model in MODELS {
        let (target, golden) = (tempfile::tempdir().expect("a folder"), golden(model));
        let cast = ConvertOptions { dtype: Some(Dtype::BF16), ..in_bits(8) };
        run(&folder(model), target.path(), &cast).expect("it converts");
        for (name, (dtype, ..)) in read(target.path()).iter().filter(|(name, _)| is_of_tower(name)) {
            assert_eq!(*dtype, Dtype::BF16, "{model}: {name}");
        }
        for image in &golden.images {
            let ours = features(&load_from(target.path()), image, target.path());
            let worst = worst(&ours, &features(&load(model), image, &folder(model)));
            assert!(worst < 2e-2, "{model}: {worst} of the spread");
        }
    }
}

/// A rule applies to towers only if its pattern begins with the name of a tower.
#[test]
fn rules_quantize_a_tower_where_they_name_it() {
    let _turn = device();
    let (target, image) = (tempfile::tempdir().expect("a folder"), noise(96, 64, 1));
    let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a rule")).collect();
    let (model, merger) = ("qwen3_vl-f32", "vision_tower.merger.linear_fc*=8:64");
    let options = ConvertOptions { rules: rules(&["*.linear_fc1=keep", merger]), ..in_bits(4) };
    let unknown = run(&folder(model), target.path(), &options).expect_err("the text has no such module");
    assert!(unknown.to_string().contains("*.linear_fc1=keep matches no module"), "{unknown}");
    let options = ConvertOptions { rules: rules(&[merger]), ..in_bits(4) };
    run(&folder(model), target.path(), &options).expect("it converts");
    let scales: Vec<String> = read(target.path())
        .into_keys()
        .filter(|name| is_of_tower(name) && name.ends_with("scales"))
        .collect();
    assert_eq!(scales, ["vision_tower.merger.linear_fc1.scales", "vision_tower.merger.linear_fc2.scales"]);
    let entry = &config(target.path())["quantization"]["vision_tower.merger.linear_fc1"];
    assert_eq!(*entry, json!({"bits": 8, "group_size": 64, "mode": "affine"}));
    let ours = features(&load_from(target.path()), &image, target.path());
    let worst = worst(&ours, &features(&load(model), &image, &folder(model)));
    assert!(worst > 1e-5 && worst < 2e-2, "{worst} of the spread");
    // A quantized tower is copied unchanged.
    let again = tempfile::tempdir().expect("a folder");
    run(target.path(), again.path(), &PLAIN).expect("it converts");
    assert!(read(again.path()) == read(target.path()));
}

/// Returns a copy of a checkpoint with a changed config.json and additional tensors.
fn changed(source: &Path, change: impl Fn(&mut Value), more: &[(&str, Tensor)]) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(source).expect("a folder").flatten() {
        fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("it can be copied");
    }
    let mut config = config(source);
    change(&mut config);
    fs::write(copy.path().join("config.json"), config.to_string()).expect("it can be written");
    let mut all = tensors::read(&source.join("model.safetensors"));
    all.extend(more.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())));
    tensors::write(&copy.path().join("model.safetensors"), &all);
    copy
}

/// The report names skipped parts: audio and vision towers that are not supported.
#[test]
fn what_cannot_be_used_is_left_out_by_name() {
    let _turn = device();
    let target = tempfile::tempdir().expect("a folder");
    let tensor = (Dtype::F32, vec![2, 2], vec![0; 16]);
    let hears = changed(
        &folder("gemma4-f32"),
        |config| config["audio_config"] = json!({"hidden_size": 2}),
        &[
            ("model.audio_tower.layers.0.weight", tensor.clone()),
            ("model.embed_audio.weight", tensor.clone()),
        ],
    );
    let report = run(hears.path(), &target.path().join("hears"), &PLAIN).expect("it converts");
    assert_eq!(report.left_out, ["audio_tower", "embed_audio"]);
    let written = config(&target.path().join("hears"));
    assert!(written["audio_config"].is_null() && written["vision_config"].is_object(), "{written}");
    load_from(&target.path().join("hears"));
    // Kimi's tower is not supported.
    let report =
        run(&model_folder("kimi_k25-f32"), &target.path().join("kimi"), &PLAIN).expect("it converts");
    assert_eq!(report.left_out, ["mm_projector", "vision_tower"]);
    assert_eq!(config(&target.path().join("kimi")).get("vision_config"), None);
    // config.json describes a tower, but its tensors are missing.
    let blind = run(&model_folder("qwen3_5-f32"), &target.path().join("blind"), &PLAIN).expect("it converts");
    assert_eq!(blind.left_out, Vec::<String>::new());
}
