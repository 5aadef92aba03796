//! Pictures: a vision tower gives what transformers gives, for each picture alone.

use std::path::PathBuf;

use mlx_core::Image;
use mlx_core::array;
use mlx_core::backend::Backend;
use mlx_core::model::Vision;
use mlx_core::weights::WeightPolicy;
use mlx_tests::{device, golden_folder, tensors};

/// Of the spread of the features.
const TOLERANCE: f32 = 2e-4;

fn folder(name: &str) -> PathBuf {
    golden_folder().join("pictures").join(name)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
}

fn load(name: &str) -> Vision {
    Vision::load(&folder(name), WeightPolicy::new(Backend::CPU, false), &mut |_, _| {}).expect("it loads")
}

#[test]
fn features_of_a_picture_are_those_of_transformers() {
    let _turn = device();
    let vision = load("mistral3-f32");
    let expected = tensors::read(&folder("mistral3-f32").join("expected.safetensors"));
    for (width, height) in [(32, 16), (48, 32), (32, 80)] {
        let of = |what: &str| floats(&expected[&format!("{width}x{height}.{what}")].2);
        let pixels = of("pixels").into_iter().map(|value| value as u8).collect();
        let image = Image::new(width, height, pixels).expect("a picture");
        let features = vision.features(&image).expect("it is seen");
        let (ours, theirs) = (array::host::<f32>(&features).expect("numbers"), of("features"));
        assert_eq!(ours.len(), theirs.len(), "{width} x {height}");
        let bounds = |pick: fn(f32, f32) -> f32| theirs.iter().copied().reduce(pick).expect("numbers");
        let spread = bounds(f32::max) - bounds(f32::min);
        let worst = ours.iter().zip(&theirs).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(worst <= TOLERANCE * spread, "{width} x {height}: {worst} of {spread}");
    }
}

#[test]
fn a_picture_that_is_no_grid_of_patches_is_refused() {
    let _turn = device();
    let image = Image::new(17, 16, vec![0; 17 * 16 * 3]).expect("a picture");
    let error = load("mistral3-f32").features(&image).expect_err("17 is not a multiple").to_string();
    assert!(error.contains("multiples of 16"), "{error}");
}

#[test]
fn a_tower_that_is_not_supported_is_named() {
    let load = |name: &str| {
        let folder = mlx_tests::model_folder(name);
        Vision::load(&folder, WeightPolicy::new(Backend::CPU, false), &mut |_, _| {}).map(drop)
    };
    for (name, word) in [("qwen3_vl-f32", "qwen3_vl"), ("llama-f32", "vision_config")] {
        let error = load(name).expect_err(name).to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_merge_that_no_tower_has_is_refused_by_name() {
    let copy = tempfile::tempdir().expect("a folder");
    let text =
        std::fs::read_to_string(folder("mistral3-f32").join("config.json")).expect("the fixture has one");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    config["spatial_merge_size"] = (1 << 30).into();
    std::fs::write(copy.path().join("config.json"), config.to_string()).expect("it can be written");
    let policy = WeightPolicy::new(Backend::CPU, false);
    let error = Vision::load(copy.path(), policy, &mut |_, _| {}).map(drop).expect_err("too many");
    assert!(error.to_string().contains("spatial_merge_size"), "{error}");
}
