//! What configs say of towers and pictures: what does not fit, or would change pixels unseen, is refused by name.

use std::path::PathBuf;

use mlx_core::backend::Backend;
use mlx_core::model::Vision;
use mlx_core::weights::WeightPolicy;
use mlx_tests::{device, golden_folder};
use serde_json::{Value, json};

fn folder(name: &str) -> PathBuf {
    golden_folder().join("pictures").join(name)
}

#[test]
fn a_tower_that_is_not_supported_is_named() {
    let _turn = device();
    let load = |name: &str| {
        let folder = mlx_tests::model_folder(name);
        Vision::load(&folder, WeightPolicy::new(Backend::CPU, false), &mut |_, _| {}).map(drop)
    };
    for (name, word) in
        [("gemma4-f32", "gemma4"), ("qwen2_vl-f32", "qwen2_vl"), ("llama-f32", "vision_config")]
    {
        let error = load(name).expect_err(name).to_string();
        assert!(error.contains(word), "{error}");
    }
}

/// A copy of a fixture without its weights, whose `file` has `value` at `path` (keys joined by dots).
fn changed(name: &str, file: &str, path: &str, value: Value) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(folder(name)).expect("the fixture is there") {
        let entry = entry.expect("the fixture can be read");
        if entry.path().extension().is_some_and(|kind| kind == "json") {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("it can be copied");
        }
    }
    let text = std::fs::read_to_string(copy.path().join(file)).expect("the fixture has one");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    *path.split('.').fold(&mut config, |place, key| &mut place[key]) = value;
    std::fs::write(copy.path().join(file), config.to_string()).expect("it can be written");
    copy
}

#[test]
fn a_tower_that_does_not_fit_its_text_is_refused_by_name() {
    for (name, path, value, words) in [
        ("mistral3-f32", "spatial_merge_size", json!(1 << 30), "spatial_merge_size is 1073741824"),
        ("qwen3_5-f32", "vision_config.out_hidden_size", json!(40), "out_hidden_size is 40"),
        ("qwen3_vl-f32", "text_config.hidden_size", json!(40), "out_hidden_size is 32"),
        (
            "qwen3_vl-f32",
            "vision_config.deepstack_visual_indexes",
            json!([0, 1, 2, 2]),
            "deepstack_visual_indexes names 4 layers; the text has 3",
        ),
        (
            "qwen3_vl-f32",
            "vision_config.deepstack_visual_indexes",
            json!([3]),
            "deepstack_visual_indexes names layer 3; there are 3",
        ),
    ] {
        let copy = changed(name, "config.json", path, value);
        let policy = WeightPolicy::new(Backend::CPU, false);
        let error = Vision::load(copy.path(), policy, &mut |_, _| {}).map(drop).expect_err(path).to_string();
        assert!(error.contains("config.json: ") && error.contains(words), "{error}");
    }
}
