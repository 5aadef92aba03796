//! Exactness: an exact request gives the same bits alone and under any load. docs/exactness.md lists the guarantees.
//!
//! `MLX_TEST_SCALE=40` makes a long run, `EXACTNESS_MODEL=FOLDER` adds your own model, `EXACTNESS_ONLY=NAME,NAME` skips all others.

use std::path::PathBuf;

use mlx_core::cache::DiskOptions;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions, Speculate};
use mlx_core::sampling::SamplingOptions;
use mlx_core::weights::FloatPolicy;
use mlx_tests::requests::{Request, assert_equal, request, run_under_load};
use mlx_tests::scale::cases;
use mlx_tests::{Dice, Outcome, collect, cpu, keeps_bits, model_folder, run};

use crate::halves::in_bf16;

/// Random requests per model.
const REQUESTS: usize = 16;

pub(super) fn start(folder: &std::path::Path, options: &EngineOptions) -> Engine {
    Engine::start(folder, &EngineOptions { exact: true, keep_quantized: true, ..options.clone() }, |_, _| {})
        .expect("the model loads")
}

/// Returns one model for each kind of arithmetic: experts, windows, sinks, caps, layers without rope, LongRoPE that switches in a sequence,
/// learned activations, states of constant size, borrowed keys and values, experts beside a dense block, latents.
pub(super) fn models() -> Vec<(PathBuf, Option<FloatPolicy>)> {
    let own = std::env::var_os("EXACTNESS_MODEL").map(PathBuf::from);
    let kinds = [
        "llama-f32",
        "llama-rope3-f32",
        "qwen3_moe-f32",
        "gpt_oss-f32",
        "gemma2-f32",
        "cohere2-f32",
        "phi3-long-f32",
        "apertus-f32",
        "lfm2-f32",
        "qwen3_5-mtp-f32",
        "nemotron_h-f32",
        "falcon_h1-f32",
        "kimi_linear-f32",
        "gemma3n_text-f32",
        "laguna-f32",
        "lfm3-f32",
        "gemma4_text-f32",
        "gemma4-f32",
        "glm4_moe_lite-mtp-f32",
        "llama-mixed-f32",
        "llama-mxfp4-bf16",
        "llama-q4-f16",
        "llama-bf16",
    ];
    let as_they_are = kinds.map(model_folder).into_iter().chain(own).map(|folder| (folder, None));
    let halves =
        [FloatPolicy::F16, FloatPolicy::Bf16].map(|floats| (model_folder("llama-rope3-f32"), Some(floats)));
    let only = std::env::var("EXACTNESS_ONLY").ok();
    let is_asked =
        |folder: &PathBuf| only.iter().all(|names| names.split(',').any(|name| folder.ends_with(name)));
    let asked: Vec<_> = as_they_are.chain(halves).filter(|(folder, _)| is_asked(folder)).collect();
    assert!(!asked.is_empty(), "EXACTNESS_ONLY names none of the models");
    asked
}

#[test]
fn a_request_gives_the_same_bits_alone_and_under_load() {
    let _turn = cpu();
    let (mut runs, mut hits, mut evictions, mut preemptions, mut restores) = (0, 0, 0, 0, 0);
    // Most mixtures are published in bf16.
    let mixture = in_bf16("qwen3_moe-f32");
    for (folder, dtype) in models().into_iter().chain([(mixture.path().to_owned(), None)]) {
        // The reference runs alone, without any cached prefix.
        let speculate = Speculate::Off;
        let alone = EngineOptions { prefix_cache: Some(0), speculate, dtype, ..EngineOptions::single() };
        let single = start(&folder, &alone);
        let name = format!("{} in {}", folder.display(), single.spec().dtype);
        if !keeps_bits(&single) {
            continue;
        }
        let mut dice = Dice::new(5);
        let requests: Vec<Request> = (0..cases(REQUESTS)).map(|_| request(&mut dice, &single)).collect();
        let alone: Vec<Outcome> =
            requests.iter().map(|request| run(&single, &request.prompt, &request.options)).collect();
        let disk = tempfile::tempdir().expect("a temporary folder");
        let known = single.spec().footprint.state(single.spec().context_length, 1);
        let crowded = EngineOptions {
            // With so few slots, higher priorities preempt lower ones; the small cache is often evicted.
            max_running: 5,
            dtype,
            prefix_cache: Some(3 * known),
            prompt_cache: Some(DiskOptions::new(disk.path().to_owned())),
            ..EngineOptions::default()
        };
        drop(single);
        // The second engine finds the first one's prefixes on disk.
        for round in ["cold", "restarted"] {
            let engine = start(&folder, &crowded);
            let loaded = run_under_load(&engine, &requests);
            for (index, (alone, loaded)) in alone.iter().zip(&loaded).enumerate() {
                assert_equal(alone, loaded, &format!("{name}, {round}, request {index}"));
            }
            let stats = engine.stats();
            runs += 1;
            hits += stats.prefix_hits;
            evictions += stats.prefix_evictions;
            preemptions += stats.preemptions;
            restores += stats.prefix_restores;
        }
    }
    // The counts depend on timing; a single model may see none.
    assert!(runs == 0 || hits > 0, "no prefix was reused, so reuse was not tested");
    assert!(runs == 0 || evictions > 0, "no prefix was evicted, so eviction was not tested");
    assert!(runs == 0 || preemptions > 0, "no request was preempted, so preemption was not tested");
    assert!(runs == 0 || restores > 0, "nothing was restored from disk, so restoring was not tested");
}

/// A wide engine pads to other numbers of rows than a narrow one.
#[test]
fn the_number_of_streams_changes_no_bit() {
    let _turn = cpu();
    let folder = model_folder("llama-f32");
    let engine = start(&folder, &EngineOptions::default());
    if !keeps_bits(&engine) {
        return;
    }
    let options = RequestOptions {
        sampling: SamplingOptions { temperature: Some(0.9), seed: Some(4), ..SamplingOptions::default() },
        max_tokens: Some(30),
        ignore_eos: true,
        logprobs: Some(20),
        ..RequestOptions::default()
    };
    let prompt = |stream: usize| vec![(5 + stream) as u32; 3 + stream];
    let alone = run(&engine, &prompt(0), &options);
    for streams in [2, 3, 5, 8, 9, 17, 32, 40] {
        let submit = |stream| {
            let request = engine.request(prompt(stream), &options).expect("valid");
            engine.submit(request).expect("room in the queue")
        };
        let generations: Vec<_> = (0..streams).rev().map(submit).collect();
        let last = generations.into_iter().map(collect).last().expect("at least two");
        assert_equal(&alone, &last, &format!("{streams} streams"));
    }
}
