//! Models that were saved without their head: tensor names lack the prefix `model.`, and the head may be missing.

use std::path::Path;

use mlx_core::backend::Backend;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions, Task};
use mlx_core::model;
use mlx_core::sentence_transformers::Pooling;
use mlx_core::weights::{FloatPolicy, WeightPolicy};
use mlx_tests::{device, golden, model_copy, run, tensors};
use serde_json::Value;

use crate::families::logits_in_passes;

const FIXTURES: [&str; 10] = [
    "llama-f32",
    "llama-mixed-f32",
    "qwen3-f32",
    "gemma3_text-f32",
    "internlm2-f32",
    "exaone-f32",
    "bailing_moe-f32",
    "nemotron_h-f32",
    "qwen3_vl-f32",
    "gemma4-f32",
];

/// Returns the name that transformers gives a tensor or a module in a model without a head.
fn base_name(name: &str) -> &str {
    ["model.", "transformer.", "backbone."]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name)
}

/// Renames the tensors of a folder and the modules in config.json accordingly. Drops heads if `is_headless`.
fn make_base(folder: &Path, is_headless: bool) {
    let file = folder.join("model.safetensors");
    let all = tensors::read(&file).into_iter();
    let kept = all.filter(|(name, _)| !is_headless || !name.starts_with("lm_head."));
    tensors::write(&file, &kept.map(|(name, tensor)| (base_name(&name).to_owned(), tensor)).collect());
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("json");
    for key in ["quantization", "quantization_config"] {
        if let Some(section) = config.get_mut(key).and_then(Value::as_object_mut) {
            *section = std::mem::take(section)
                .into_iter()
                .map(|(name, it)| (base_name(&name).to_owned(), it))
                .collect();
        }
    }
    std::fs::write(path, config.to_string()).expect("it can be written");
}

#[test]
fn names_without_their_first_part_give_the_same_logits() {
    let _turn = device();
    for name in FIXTURES {
        let copy = model_copy(name);
        let text = golden::logits(name, true);
        let policy = WeightPolicy { floats: FloatPolicy::F32, keep_packed: false, backend: Backend::CPU };
        let logits = || {
            let model = model::load(copy.path(), policy, &mut |_, _| {});
            let model = model.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(model.spec().has_head, "{name}");
            logits_in_passes(model.as_ref(), &text.tokens, &[])
        };
        let before = logits();
        make_base(copy.path(), false);
        assert!(before == logits(), "{name}");
    }
}

#[test]
fn a_model_without_a_head_makes_vectors_and_refuses_texts() {
    let _turn = device();
    let (whole, base) = (model_copy("llama-f32"), model_copy("llama-f32"));
    make_base(base.path(), true);
    let [whole, base] = [&whole, &base]
        .map(|it| Engine::start(it.path(), &EngineOptions::single(), |_, _| {}).expect("it starts"));
    assert!(whole.spec().has_head && !base.spec().has_head);
    let embed = RequestOptions { task: Task::Embed(Pooling::Mean.into()), ..RequestOptions::default() };
    let [one, other] =
        [&whole, &base].map(|engine| run(engine, &[7, 8, 9], &embed).embedding.expect("a vector"));
    assert_eq!(one, other);
    for task in [Task::Generate, Task::Score] {
        let options = RequestOptions { task, ..RequestOptions::default() };
        let refused =
            base.request(vec![7, 8, 9], &options).map(drop).expect_err("it has no head").to_string();
        assert!(refused.contains("lm_head.weight"), "{refused}");
    }
}
