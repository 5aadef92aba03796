//! A model divided by layers among processes gives the same answers as one process, alone and under load.

use std::path::Path;

use mlx_core::distributed::Parallel;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions, Speculate};
use mlx_core::weights::FloatPolicy;
use mlx_tests::divisible::with_layers;
use mlx_tests::machines::{self, several};
use mlx_tests::requests::{assert_equal, request, run_under_load};
use mlx_tests::worker_process::WorkerProcess;
use mlx_tests::{Dice, at_rest, collect, cpu, greedy, keeps_bits, pictures, run};

use crate::worker_parts::{MLX, in_four_bits};

/// Families with different layers and states, the number of layers of the copy, and that of the workers.
const MODELS: [(&str, usize, usize); 7] = [
    ("llama-f32", 5, 3),
    ("llama-q4-f16", 4, 1),
    ("qwen3_moe-f32", 4, 1),
    ("gpt_oss-f32", 4, 3),
    ("qwen3_5-q4-f32", 8, 3),
    ("gemma3_text-f32", 7, 1),
    ("deepseek_v2-f32", 3, 2),
];

/// Starts an engine with these workers.
pub(crate) fn start(folder: &Path, of: &[WorkerProcess], options: &EngineOptions) -> Engine {
    machines::start(MLX, folder, of, Parallel::Pipeline, options)
}

/// Returns a prompt of this length.
pub(crate) fn prompt(length: usize, salt: usize) -> Vec<u32> {
    (0..length).map(|place| ((place * 31 + salt * 17 + place * place) % 88 + 4) as u32).collect()
}

/// Returns options for exact answers with packed weights.
pub(crate) fn exact() -> EngineOptions {
    EngineOptions { exact: true, keep_quantized: true, ..EngineOptions::default() }
}

/// Returns two texts with a common prefix, and one that continues an answer.
fn conversation(engine: &Engine) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut options = greedy(24);
    options.logprobs = Some(2);
    let mut outcomes = Vec::new();
    let mut text = prompt(70, 1);
    for more in [0, 5, 40] {
        text.extend(prompt(more, 2));
        let outcome = run(engine, &text, &options);
        let bits = outcome.tokens.iter().map(|it| it.logprob.as_ref().map_or(0, |it| it.logprob.to_bits()));
        outcomes.push((outcome.ids(), bits.collect()));
        text.extend(outcome.ids());
    }
    outcomes
}

/// Compares an engine with workers to one without; both have these options.
fn compare(name: &str, folder: &Path, count: usize, options: &EngineOptions) {
    let alone = Engine::start(folder, options, |_, _| {}).expect("the model loads");
    let expected = conversation(&alone);
    let cached = alone.stats().cached_tokens;
    drop(alone);
    let there = several(MLX, folder, count);
    let engine = start(folder, &there, options);
    assert_eq!(conversation(&engine), expected, "{name} with {count} workers");
    assert_eq!(at_rest(&engine).cached_tokens, cached, "{name} with {count} workers");
}

#[test]
fn several_machines_answer_as_one() {
    let _turn = cpu();
    let plain = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
    for (name, layers, count) in MODELS {
        compare(name, with_layers(name, layers).path(), count, &plain);
    }
    let source = with_layers("qwen3_moe-f32", 4);
    compare("qwen3_moe in 4 bits", &in_four_bits(source.path()), 1, &plain);
}

#[test]
fn weights_are_unpacked_on_all_machines_and_states_packed() {
    let _turn = cpu();
    let dtype = Some(FloatPolicy::F32);
    let unpacked = EngineOptions { dtype, ..EngineOptions::default() };
    compare("unpacked", with_layers("llama-q4-f16", 4).path(), 3, &unpacked);
    let few_bits = EngineOptions { kv_bits: Some(8), ..EngineOptions::default() };
    compare("few bits", with_layers("llama-f32", 5).path(), 1, &few_bits);
}

#[test]
fn a_text_that_outgrows_the_context_slides_on_all_machines() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    let plain = EngineOptions { context: Some(64), ..EngineOptions::default() };
    let answer = |engine: Engine| {
        let request = RequestOptions { n_keep: Some(10), ignore_eos: true, ..greedy(200) };
        run(&engine, &prompt(30, 1), &request).ids()
    };
    let alone = answer(Engine::start(folder.path(), &plain, |_, _| {}).expect("the model loads"));
    assert_eq!(alone.len(), 200);
    let there = several(MLX, folder.path(), 2);
    assert_eq!(answer(start(folder.path(), &there, &plain)), alone);
}

#[test]
fn scores_of_a_prompt_are_those_of_one_machine() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    let all = RequestOptions { prompt_logprobs: Some(1), ..greedy(4) };
    let alone = Engine::start(folder.path(), &EngineOptions::default(), |_, _| {}).expect("it loads");
    let expected = run(&alone, &prompt(200, 2), &all);
    assert_eq!(expected.prompt_tokens.len(), 200);
    let there = several(MLX, folder.path(), 2);
    let engine = start(folder.path(), &there, &EngineOptions::default());
    assert_equal(&expected, &run(&engine, &prompt(200, 2), &all), "scores");
}

/// Sends the same requests one by one and under load.
pub(crate) fn check_company(engine: &Engine, name: &str, seed: usize) {
    if !keeps_bits(engine) {
        return;
    }
    let mut dice = Dice::new(seed as u64);
    let requests: Vec<_> = (0..12).map(|_| request(&mut dice, engine)).collect();
    let alone: Vec<_> = requests.iter().map(|it| run(engine, &it.prompt, &it.options)).collect();
    let loaded = run_under_load(engine, &requests);
    for (place, (alone, loaded)) in alone.iter().zip(&loaded).enumerate() {
        assert_equal(alone, loaded, &format!("{name}, request {place}"));
    }
}

#[test]
fn exact_requests_have_the_same_bits_alone_and_under_load() {
    let _turn = cpu();
    for (name, layers) in [("llama-f32", 5), ("qwen3_5-q4-f32", 8)] {
        let folder = with_layers(name, layers);
        let there = several(MLX, folder.path(), 2);
        check_company(&start(folder.path(), &there, &exact()), name, layers);
    }
}

/// Checks that drafts from the text and from earlier answers change no token.
pub(crate) fn check_drafts(name: &str, start: impl Fn(&EngineOptions) -> Engine) {
    let text = [prompt(60, 3), prompt(30, 3)].concat();
    // Drafts of random texts of three tokens are often wrong.
    let mut random = greedy(40);
    (random.sampling.temperature, random.sampling.seed) = (Some(1.0), Some(5));
    random.sampling.logit_bias = [10, 11, 12].map(|token| (token, 100.0)).to_vec();
    let answers = |engine: &Engine| {
        [(&text[..], &random), (&text[1..], &random), (&text[..], &greedy(40))]
            .map(|(text, options)| run(engine, text, options).ids())
    };
    let off = EngineOptions { speculate: Speculate::Off, ..EngineOptions::default() };
    let expected = answers(&start(&off));
    let drafting =
        EngineOptions { speculate: Speculate::Suffix, force_drafts: true, ..EngineOptions::default() };
    let engine = start(&drafting);
    let found = answers(&engine);
    assert_eq!(found, expected, "{name}");
    let stats = at_rest(&engine);
    assert!(stats.drafted_tokens > stats.accepted_tokens && stats.accepted_tokens > 0, "{name}: {stats:?}");
    // Resumes from a checkpoint or the end of the same text.
    let longer = [&text[..], &found[2][..10]].concat();
    assert_eq!(run(&engine, &longer, &greedy(20)).ids(), found[2][10..30], "{name}");
    assert!(at_rest(&engine).cached_tokens > 0, "{name}");
}

#[test]
fn drafts_are_verified_on_all_machines() {
    let _turn = cpu();
    for (name, layers) in [("llama-f32", 4), ("qwen3_5-f32", 8), ("gemma3_text-f32", 6)] {
        let folder = with_layers(name, layers);
        let there = several(MLX, folder.path(), 1);
        check_drafts(name, |options| start(folder.path(), &there, options));
    }
}

#[test]
fn several_machines_see_as_one() {
    let _turn = cpu();
    let exact = EngineOptions { exact: true, ..EngineOptions::default() };
    // Rank 0 holds the layers that add further picture features: in this Qwen3-VL, two of three.
    for (model, count) in [("mistral3-f32", 2), ("qwen3_vl-f32", 1), (pictures::TWO_WAY, 2)] {
        let alone = pictures::start(model, &exact);
        let (prompts, whole) = (pictures::many(&alone), alone.spec().weight_bytes);
        let expected: Vec<_> =
            prompts.iter().map(|prompt| pictures::bits(&pictures::answer(&alone, prompt, 12))).collect();
        drop(alone);
        let folder = pictures::folder(model);
        let there = several(MLX, &folder, count);
        let engine = start(&folder, &there, &exact);
        assert!(engine.spec().weight_bytes < whole);
        let running: Vec<_> = prompts.iter().map(|prompt| pictures::submit(&engine, prompt, 12)).collect();
        for (number, (generation, expected)) in running.into_iter().zip(&expected).enumerate() {
            assert_eq!(&pictures::bits(&collect(generation)), expected, "{model}, {number} pictures");
        }
    }
    let folder = pictures::folder("qwen3_vl-f32");
    let there = several(MLX, &folder, 2);
    let workers = machines::workers(&there, Parallel::Pipeline);
    let refused = machines::try_start(MLX, &folder, workers, &EngineOptions::default());
    let refused = refused.map(drop).expect_err("one layer is left").to_string();
    assert!(refused.contains("the 3 layers of this model cannot be divided"), "{refused}");
}

#[test]
fn every_machine_has_its_layers_and_no_more() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 6);
    let plain = EngineOptions::default();
    let whole = Engine::start(folder.path(), &plain, |_, _| {}).expect("it loads");
    // The machine with the least memory limits what the engine promises.
    let small = ["--port", "0", "--device", "cpu", "--memory-budget", "64MiB"];
    let there = [
        WorkerProcess::start(MLX, folder.path(), "0"),
        WorkerProcess::start_with(MLX, folder.path(), &small),
    ];
    let engine = start(folder.path(), &there, &plain);
    let (part, all) = (engine.spec().weight_bytes, whole.spec().weight_bytes);
    assert!(part < all, "{part} of {all} bytes are on rank 0");
    assert_eq!(engine.spec().num_layers, 6);
    assert_ne!(engine.spec().fingerprint, whole.spec().fingerprint);
    let given = engine.stats().budget_bytes;
    assert!(given < 64 << 20 && given < whole.stats().budget_bytes, "{given} bytes");
    assert_eq!(run(&engine, &prompt(20, 1), &greedy(4)).ids().len(), 4);
}

#[test]
fn an_engine_without_its_own_process_is_refused() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    let workers = Some(machines::workers(&[], Parallel::Pipeline));
    let options = EngineOptions { workers, ..EngineOptions::default() };
    let refused = Engine::start(folder.path(), &options, |_, _| {}).map(drop).expect_err("it cannot join");
    assert!(refused.to_string().starts_with("workers: need an engine in a process of its own"), "{refused}");
}
