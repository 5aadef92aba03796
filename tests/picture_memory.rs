//! The memory of pictures: reservations equal the actual use, and the budget holds under load.

use chat_format::Image;
use mlx_core::array::{peak_memory, reset_peak_memory};
use mlx_core::chat::ChatPrompt;
use mlx_core::engine::{EngineOptions, FinishReason, Generation};
use mlx_core::inspect::inspect;
use mlx_tests::pictures::{MODELS, TWO_WAY, folder, load, noise, question, start, submit, with_answers};
use mlx_tests::{collect, device, model_folder};

#[test]
fn the_memory_of_pictures_is_promised_before_they_are_seen() {
    let _turn = device();
    for model in with_answers() {
        let vision = load(model);
        for (width, height) in [(48, 48), (96, 96), (336, 336)] {
            let image = noise(width, height, 1).pixels().expect("they are there");
            let before = mlx_core::array::active_memory().expect("a figure");
            reset_peak_memory().expect("a device");
            vision.features(&image).expect("it is seen").eval().expect("it is computed");
            let taken = (peak_memory().expect("a figure") - before) as u64;
            let promised = vision.footprint().pass(&image);
            assert!(taken <= promised, "{model}, {width} x {height}: {taken} bytes, {promised} promised");
            assert!(promised <= 8 * taken, "{model}, {width} x {height}: {taken} bytes, {promised} promised");
        }
    }
}

/// The tower's size in `mlx inspect` is the memory that an engine uses for it.
#[test]
fn inspect_counts_the_tower_and_the_tokens_of_a_picture() {
    let _turn = device();
    for (model, tokens) in [
        ("mistral3-f32", 6 * (6 + 1)),
        ("qwen2_vl-f32", 6 * 6),
        ("qwen2_5_vl-f32", 6 * 6),
        ("qwen3_5-f32", 6 * 6),
        ("qwen3_vl-f32", 6 * 6),
        ("gemma4-f32", 1 + 8 * 8 + 1),
        // Four tiles and the whole picture, each after a token, and a token at each end.
        ("lfm2_vl-f32", 4 * (1 + 2 * 2) + 1 + 6 * 6 + 2),
        (TWO_WAY, 1 + 8 * 8 + 1),
        ("gemma4_unified-f32", 1 + 8 * 8 + 1),
        ("mistral3-q4-f32", 6 * (6 + 1)),
        ("qwen3_vl-q4-f32", 6 * 6),
        ("gemma4-q4-f32", 1 + 8 * 8 + 1),
    ] {
        let options = EngineOptions::default();
        let found = inspect(&folder(model), &options).expect("it can be read");
        let vision = found.vision.expect("it has a tower").expect("it sees");
        assert_eq!(
            (vision.weight_bytes, vision.picture_tokens),
            (load(model).footprint().weight_bytes, tokens)
        );
        let resting = start(model, &options).stats();
        assert_eq!(found.memory_fit.shared, resting.budget_bytes - resting.reserved_bytes, "{model}");
    }
    let blind = inspect(&model_folder("kimi_k25-f32"), &EngineOptions::default()).expect("it can be read");
    assert!(blind.vision.expect("it has a tower").is_err_and(|why| why.contains("kimi_k25")));
    let text = inspect(&model_folder("llama-f32"), &EngineOptions::default()).expect("it can be read");
    assert_eq!(text.vision, None);
}

/// The budget has room for a few of forty requests with pictures.
#[test]
fn under_load_pictures_keep_to_the_budget() {
    let _turn = device();
    for model in MODELS {
        keep_to_the_budget(model);
    }
}

fn keep_to_the_budget(model: &str) {
    let before = mlx_core::array::active_memory().expect("a figure") as u64;
    let resting = start(model, &EngineOptions::default()).stats().reserved_bytes;
    // A picture of gemma4 has 630 patches, others have 144.
    let requests = if model.starts_with("gemma4") { 40_000_000 } else { 5_000_000 };
    let budget = (resting + requests) * 16 / 15 + 16;
    let engine = start(model, &EngineOptions { memory_budget: Some(budget), ..EngineOptions::default() });
    let images: Vec<Image> = (0..6).map(|seed| noise(96, 96, seed)).collect();
    let prompts: Vec<ChatPrompt> = (0..40)
        .map(|place| {
            let some: Vec<&Image> = (0..=place % 3).map(|it| &images[(place * 5 + it) % 6]).collect();
            question(&engine, &some, &format!("Number {place}?"))
        })
        .collect();
    reset_peak_memory().expect("a device");
    let running: Vec<Generation> =
        prompts.iter().enumerate().map(|(place, prompt)| submit(&engine, prompt, 4 + place % 30)).collect();
    let mut waited = false;
    for generation in running {
        let stats = engine.stats();
        assert!(stats.used_bytes <= stats.reserved_bytes && stats.reserved_bytes <= stats.budget_bytes);
        waited |= stats.waiting > 0;
        assert_eq!(collect(generation).finished.reason, FinishReason::Length);
    }
    assert!(waited, "{model}: it was crowded");
    let peak = peak_memory().expect("a figure") as u64 - before;
    assert!(peak <= budget, "{model}: {peak} bytes at the peak, {budget} allowed");
    drop(engine);
    assert_eq!(mlx_core::array::active_memory().expect("a figure") as u64, before);
}
