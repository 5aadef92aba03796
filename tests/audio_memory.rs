//! The memory of audio: reservations cover the actual use, and an engine without memory for the tower runs without it.

use mlx_core::ModelFolder;
use mlx_core::array::{active_memory, peak_memory, reset_peak_memory};
use mlx_core::engine::{EngineOptions, FinishReason, Generation};
use mlx_core::inspect::inspect;
use mlx_tests::input_audio::{MODELS, folder, load, noise, question, start};
use mlx_tests::pictures::submit;
use mlx_tests::{collect, device, model_folder};

#[test]
fn the_memory_of_audio_is_promised_before_it_is_heard() {
    let _turn = device();
    for model in MODELS {
        let tower = load(model);
        let processor = ModelFolder::open(&folder(model)).expect("a folder").audio.expect("it hears");
        for milliseconds in [300, 3000, 29_000] {
            let clip = processor.clip(&noise(milliseconds, 1), &mut || Ok(())).expect("it is audio");
            let before = active_memory().expect("a figure");
            reset_peak_memory().expect("a device");
            tower.features(&clip).expect("it is heard").eval().expect("it is computed");
            let taken = (peak_memory().expect("a figure") - before) as u64;
            let promised = tower.footprint().pass(&clip);
            assert!(taken <= promised, "{model}, {milliseconds} ms: {taken} bytes, {promised} promised");
            assert!(promised <= 8 * taken, "{model}, {milliseconds} ms: {taken} bytes, {promised} promised");
        }
    }
}

/// The tower's size in `mlx inspect` is the memory that an engine uses for it.
#[test]
fn inspect_counts_the_tower_and_the_tokens_of_the_longest_clip() {
    let _turn = device();
    for model in MODELS {
        let options = EngineOptions::default();
        let found = inspect(&folder(model), &options).expect("it can be read");
        let audio = found.audio.expect("it has a tower").expect("it hears");
        assert_eq!(audio.weight_bytes, load(model).footprint().weight_bytes);
        let longest = if model.starts_with("gemma4") { (30, 1 + 750 + 1) } else { (1200, 13 * 1200) };
        assert_eq!((audio.max_seconds, audio.clip_tokens), longest, "{model}");
        let resting = start(model, &options).stats();
        assert_eq!(found.memory_fit.shared, resting.budget_bytes - resting.reserved_bytes, "{model}");
    }
    let text = inspect(&model_folder("llama-f32"), &EngineOptions::default()).expect("it can be read");
    assert_eq!(text.audio, None);
}

/// The longest clip of these settings has terabytes of samples. Its size is computed without them.
#[test]
fn a_model_whose_clips_would_last_years_cannot_hear() {
    let _turn = device();
    let copy = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(folder("gemma4-f32")).expect("the fixture").flatten() {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("it can be copied");
    }
    let settings = r#"{"audio_seq_length": 1073741824, "audio_ms_per_token": 40}"#;
    std::fs::write(copy.path().join("processor_config.json"), settings).expect("it can be written");
    let found = inspect(copy.path(), &EngineOptions::default()).expect("the text can be read");
    let why = found.audio.expect("it has a tower").expect_err("it cannot hear");
    let expected =
        "audio_seq_length times audio_ms_per_token is 42949673 seconds; at most 3600 are supported";
    assert!(why.contains(expected), "{why}");
}

/// The budget has room for a few of twenty requests with audio.
#[test]
fn under_load_audio_keeps_to_the_budget() {
    let _turn = device();
    for model in MODELS {
        let before = active_memory().expect("a figure") as u64;
        let resting = start(model, &EngineOptions::default()).stats().reserved_bytes;
        let budget = (resting + 5_000_000) * 16 / 15 + 16;
        let engine = start(model, &EngineOptions { memory_budget: Some(budget), ..EngineOptions::default() });
        let clips: Vec<_> = (0..6).map(|seed| noise(1500, seed)).collect();
        let prompts: Vec<_> = (0..20)
            .map(|place| question(&engine, &[&clips[place % 6], &clips[place * 5 % 6]], &format!("{place}?")))
            .collect();
        reset_peak_memory().expect("a device");
        let running: Vec<Generation> =
            prompts.iter().zip(4..).map(|(prompt, tokens)| submit(&engine, prompt, tokens)).collect();
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
    }
}
