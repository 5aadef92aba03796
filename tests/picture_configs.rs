//! The configs of towers and pictures: values that do not fit, or would change pixels silently, are rejected by name.

use std::path::{Path, PathBuf};

use chat_format::Image;
use mlx_core::ModelFolder;
use mlx_core::backend::Backend;
use mlx_core::model::Vision;
use mlx_core::weights::WeightPolicy;
use mlx_tests::{device, golden_folder};
use serde_json::{Value, json};

/// Returns the folder of a fixture.
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
    for (name, word) in [("kimi_k25-f32", "kimi_k25"), ("llama-f32", "vision_config")] {
        let error = load(name).expect_err(name).to_string();
        assert!(error.contains(word), "{error}");
    }
}

/// Returns a copy of a fixture without its weights, with `value` at `path` in `file` (keys joined by dots).
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
        ("qwen2_vl-f32", "vision_config.hidden_size", json!(40), "hidden_size is 40"),
        ("qwen2_5_vl-f32", "vision_config.out_hidden_size", json!(40), "out_hidden_size is 40"),
        ("qwen2_5_vl-f32", "vision_config.num_heads", json!(5), "num_heads must divide 48"),
        ("qwen2_5_vl-f32", "vision_config.window_size", json!(15), "window_size is 15"),
        ("qwen2_5_vl-f32", "vision_config.fullatt_block_indexes", json!([3]), "has layer 3; depth is 3"),
        (
            "qwen2_5_vl-f32",
            "text_config.rope_scaling.mrope_section",
            json!([1, 1, 1]),
            "must be three counts that sum to 4 pairs",
        ),
        ("qwen3_5-f32", "vision_config.out_hidden_size", json!(40), "out_hidden_size is 40"),
        ("qwen3_vl-f32", "text_config.hidden_size", json!(40), "out_hidden_size is 32"),
        (
            "qwen3_vl-f32",
            "vision_config.deepstack_visual_indexes",
            json!([0, 1, 2, 2]),
            "deepstack_visual_indexes has 4 layers; the text has only 3",
        ),
        (
            "qwen3_vl-f32",
            "vision_config.deepstack_visual_indexes",
            json!([3]),
            "deepstack_visual_indexes has layer 3; depth is 3",
        ),
        ("gemma4-f32", "vision_config.num_key_value_heads", json!(3), "num_key_value_heads is 3"),
        ("gemma4-f32", "vision_config.head_dim", json!(18), "head_dim is 18"),
        ("gemma4-f32", "vision_config.patch_size", json!(1 << 30), "patch_size is 1073741824"),
        ("gemma4-f32", "vision_config.intermediate_size", json!(1u64 << 40), "intermediate_size is"),
        ("gemma4-f32", "vision_config.attention_bias", json!(true), "attention_bias is true"),
        ("gemma4-f32", "vision_config.hidden_activation", json!("xielu"), "hidden_activation \"xielu\""),
        ("gemma4_unified-f32", "vision_config.model_patch_size", json!(16), "model_patch_size is 16"),
        ("gemma4_unified-f32", "vision_config.output_proj_dims", json!(40), "output_proj_dims is 40"),
        ("gemma4_unified-f32", "vision_config.mm_embed_dim", json!(1u64 << 40), "mm_embed_dim is"),
        ("gemma4-f32", "vision_config.rope_parameters.rope_type", json!("yarn"), "rope_type \"yarn\""),
        ("lfm2_vl-f32", "vision_config.num_attention_heads", json!(5), "num_attention_heads is 5"),
        ("lfm2_vl-f32", "vision_config.num_patches", json!(15), "num_patches is 15"),
        ("lfm2_vl-f32", "vision_config.num_channels", json!(4), "num_channels is 4"),
        ("lfm2_vl-f32", "vision_config.hidden_act", json!("xielu"), "hidden_act \"xielu\""),
        ("lfm2_vl-f32", "projector_hidden_size", json!(1u64 << 40), "projector_hidden_size is"),
    ] {
        let copy = changed(name, "config.json", path, value);
        let policy = WeightPolicy::new(Backend::CPU, false);
        let error = Vision::load(copy.path(), policy, &mut |_, _| {}).map(drop).expect_err(path).to_string();
        assert!(error.contains("config.json: ") && error.contains(words), "{error}");
    }
}

const SETTINGS: &str = "preprocessor_config.json";

#[test]
fn settings_that_would_change_pixels_are_refused_by_name() {
    for (name, path, value, words) in [
        ("mistral3-f32", "do_resize", json!(false), "do_resize is false"),
        ("qwen3_5-f32", "do_rescale", json!(false), "do_rescale is false"),
        ("qwen3_vl-f32", "do_normalize", json!(false), "do_normalize is false"),
        ("qwen3_vl-f32", "do_normalize", json!("no"), "do_normalize is \"no\""),
        ("mistral3-f32", "rescale_factor", json!(0.5), "rescale_factor is 0.5"),
        ("qwen3_5-f32", "patch_size", json!(14), "patch_size is 14, but config.json has 8"),
        ("qwen3_vl-f32", "merge_size", json!(1), "merge_size is 1, but config.json has 2"),
        ("mistral3-f32", "size", json!({"height": 96, "width": 96}), "size.longest_edge is missing"),
        ("qwen3_5-f32", "size", json!({"longest_edge": 9216}), "size.shortest_edge is missing"),
        ("qwen3_vl-f32", "size", json!({"shortest_edge": 1024}), "size.longest_edge is missing"),
        ("qwen3_vl-f32", "size", json!(224), "size is 224"),
        ("gemma4-f32", "do_resize", json!(false), "do_resize is false"),
        ("gemma4-f32", "do_rescale", json!(false), "do_rescale is false"),
        ("gemma4-f32", "patch_size", json!(16), "patch_size is 16, but config.json has 4"),
        ("gemma4-f32", "pooling_kernel_size", json!(2), "pooling_kernel_size is 2, but config.json has 3"),
        ("gemma4-f32", "max_soft_tokens", json!(100), "max_soft_tokens is 100"),
        // With more tokens a picture may be longer.
        ("gemma4-f32", "max_soft_tokens", json!(140), "position_embedding_size is 210"),
        ("gemma4_unified-f32", "max_soft_tokens", json!(140), "mm_posemb_size is 70"),
        ("lfm2_vl-f32", "encoder_patch_size", json!(4), "encoder_patch_size is 4, but config.json has 8"),
        ("lfm2_vl-f32", "downsample_factor", json!(3), "downsample_factor is 3, but config.json has 2"),
        ("lfm2_vl-f32", "tile_size", json!(40), "tile_size is 40; it must be a multiple of 16"),
        ("lfm2_vl-f32", "min_tiles", json!(1), "min_tiles is 1; it must be from 2 to max_tiles, 6"),
        ("lfm2_vl-f32", "max_tiles", json!(65), "max_tiles is 65"),
        (
            "gemma4_unified-f32",
            "pooling_kernel_size",
            json!(2),
            "pooling_kernel_size is 2, but config.json has 3",
        ),
    ] {
        let [own, nested] = [changed(name, SETTINGS, path, value.clone()), nested(name, path, value)];
        for copy in [own, nested] {
            let images = ModelFolder::open(copy.path()).expect("the text can be read").images;
            let why = images.expect_err(path).to_string();
            assert!(why.contains("config.json: ") && why.contains(words), "{name}: {why}");
        }
    }
    for (name, path, value) in [
        ("mistral3-f32", "rescale_factor", json!(0.003_921_568_627_450_98)),
        ("mistral3-f32", "patch_size", json!({"height": 16, "width": 16})),
        ("qwen3_5-f32", "do_resize", json!(true)),
        ("qwen3_vl-f32", "size", Value::Null),
        // The mean is 0 and the deviation is 1.
        ("gemma4-f32", "do_normalize", json!(true)),
    ] {
        let [own, nested] = [changed(name, SETTINGS, path, value.clone()), nested(name, path, value)];
        for copy in [own, nested] {
            ModelFolder::open(copy.path()).expect("the text can be read").images.expect(path);
        }
    }
}

/// Returns a copy of a fixture with its picture settings in a section of processor_config.json, with `value` at `path`. The settings file
/// of older tools is unchanged.
fn nested(name: &str, path: &str, value: Value) -> tempfile::TempDir {
    let copy = changed(name, SETTINGS, path, value);
    let settings = std::fs::read_to_string(copy.path().join(SETTINGS)).expect("it was written");
    let processor = format!("{{\"processor_class\": \"Any\", \"image_processor\": {settings}}}");
    std::fs::write(copy.path().join("processor_config.json"), processor).expect("it can be written");
    std::fs::copy(folder(name).join(SETTINGS), copy.path().join(SETTINGS)).expect("it can be copied");
    copy
}

/// transformers 5 writes the settings into processor_config.json and prefers them there.
#[test]
fn nested_settings_win_over_those_of_older_tools() {
    let wrong = json!({
        "do_resize": false, "do_rescale": false, "do_normalize": false, "rescale_factor": 1, "resample": 9, "patch_size": 999,
        "merge_size": 999, "pooling_kernel_size": 999, "max_soft_tokens": 999, "size": 999, "min_pixels": 1, "max_pixels": 1,
        "image_mean": [1], "image_std": [0], "encoder_patch_size": 999, "downsample_factor": 999, "tile_size": 999, "min_tiles": 999,
        "max_image_tokens": 1, "use_thumbnail": 1,
    });
    let image = Image::new(90, 300, (0..81_000).map(|at| (at % 251) as u8).collect()).expect("a picture");
    for name in
        ["mistral3-f32", "qwen2_5_vl-f32", "qwen3_vl-f32", "gemma4-f32", "gemma4_unified-f32", "lfm2_vl-f32"]
    {
        let copy = nested(name, "do_rescale", json!(true));
        std::fs::write(copy.path().join(SETTINGS), wrong.to_string()).expect("it can be written");
        let seen = |folder: &Path| {
            let processor = ModelFolder::open(folder).expect("it can be read").images.expect(name);
            let resized = processor.resized(&image).expect("a size");
            let rows = resized.parts.iter().map(|part| processor.rows(part).expect("whole patches"));
            (rows.collect::<Vec<_>>(), resized)
        };
        assert_eq!(seen(copy.path()), seen(&folder(name)), "{name}");
    }
    // The tower reads its own section.
    for (key, value, words) in [
        ("image_std", json!([0.5, 0, 0.5]), "processor_config.json: image_processor.image_std contains 0"),
        ("image_mean", json!([0.5]), "processor_config.json: image_processor.image_mean has 1 numbers"),
    ] {
        let copy = nested("qwen3_vl-f32", key, value);
        let weights = "model.safetensors";
        std::fs::copy(folder("qwen3_vl-f32").join(weights), copy.path().join(weights))
            .expect("it can be copied");
        let policy = WeightPolicy::new(Backend::CPU, false);
        let error = Vision::load(copy.path(), policy, &mut |_, _| {}).map(drop).expect_err(key).to_string();
        assert!(error.contains(words), "{error}");
    }
    // A processor_config.json without the section, as older tools write it, has no effect.
    let copy = changed("qwen3_vl-f32", SETTINGS, "patch_size", json!(14));
    for processor in [json!({"processor_class": "Any"}), json!({"image_processor": null})] {
        std::fs::write(copy.path().join("processor_config.json"), processor.to_string())
            .expect("it can be written");
        let why =
            ModelFolder::open(copy.path()).expect("it can be read").images.expect_err("patches").to_string();
        assert!(why.contains("preprocessor_config.json: patch_size is 14"), "{why}");
    }
}

/// The limit is checked before memory is allocated.
#[test]
fn a_size_rule_that_asks_for_too_many_pixels_is_refused_by_name() {
    let huge = 1 << 30;
    for (name, path, value, (width, height), rule) in [
        ("qwen3_vl-f32", "min_pixels", json!(huge), (100, 100), "min_pixels is 1073741824"),
        (
            "qwen3_5-f32",
            "size",
            json!({"shortest_edge": huge, "longest_edge": huge}),
            (100, 100),
            "size.shortest_edge is 1073741824",
        ),
        ("lfm2_vl-f32", "tile_size", json!(huge), (300, 300), "tile_size is 1073741824"),
        ("lfm2_vl-f32", "min_image_tokens", json!(huge), (10, 10), "min_image_tokens is 1073741824"),
        // A row of one pixel becomes a row of one patch.
        (
            "mistral3-f32",
            "size",
            json!({"longest_edge": huge}),
            (4_000_000, 1),
            "size.longest_edge is 1073741824",
        ),
    ] {
        let copy = changed(name, SETTINGS, path, value);
        let processor = ModelFolder::open(copy.path()).expect("it can be read").images.expect("it sees");
        let image = Image::new(width, height, vec![0; (3 * width * height) as usize]).expect("a picture");
        let error = processor.resized(&image).expect_err(name).to_string();
        assert!(
            error.contains(&format!("above the limit of 40000000: preprocessor_config.json: {rule}")),
            "{error}"
        );
    }
}
