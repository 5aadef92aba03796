//! One model on several machines that each hold a shard of every layer: it answers as on one, except for the order of sums. The workers are
//! threads in this process, but connect over TCP. A full run tries every checkpoint that can be sharded.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mlx_core::distributed::{Parallel, Workers};
use mlx_core::engine::{Engine, EngineOptions, RequestOptions};
use mlx_core::inspect::divide;
use mlx_tests::pictures;
use mlx_tests::scale::is_full;
use mlx_tests::workers::{ThreadWorker, wide_mixture, with_key_heads, workers};
use mlx_tests::{Dice, collect, cpu, golden_folder, greedy, keeps_bits, model_copy, model_folder, run};

use crate::convert;
use crate::exactness::{assert_equal, request, run_under_load, start};

use crate::speculation::{Texts, lying};

/// The gap between the best two tokens above which the order of sums does not change the best one.
const CLEAR: f32 = 1e-4;

/// Families with layers that two machines can share: one for each layout of attention, recurrent layers and experts. Gemma has one key
/// head, which both machines hold.
const MODELS: [&str; 30] = [
    "llama-f32",
    "llama-bias-f32",
    "llama-linear-f32",
    "llama-tied-q4-f32",
    "llama-mxfp8-f32",
    "llama-nvfp4-f16",
    "qwen2-f32",
    "qwen3-f32",
    "phi3-f32",
    "internlm2-f32",
    "starcoder2-f32",
    "granite-f32",
    "cohere2-f32",
    "gemma2-f32",
    "gemma3_text-f32",
    "qwen3_moe-f32",
    "qwen2_moe-f32",
    "mixtral-f32",
    "granitemoe-f32",
    "gpt_oss-f32",
    "glm4_moe-f32",
    "gemma-f32",
    "cohere-f32",
    "olmo2-f32",
    "minimax_m2-f32",
    "stablelm-f32",
    "qwen3_5-f32",
    "qwen3_5-q4-f32",
    "qwen3_5_moe-f32",
    "qwen3_next-f32",
];

/// Models for four machines, with their number of key heads: with fewer than four, two or four machines hold the same one.
const OF_FOUR: [(&str, usize); 14] = [
    ("llama-f32", 4),
    ("qwen3-f32", 4),
    ("llama-nvfp4-f16", 4),
    ("qwen3_moe-f32", 4),
    ("gpt_oss-f32", 4),
    ("gpt_oss-f32", 2),
    ("gemma-f32", 1),
    ("internlm2-f32", 2),
    ("olmo2-f32", 2),
    ("stablelm-f32", 2),
    ("qwen3_5-f32", 4),
    ("qwen3_5-q4-f32", 2),
    ("qwen3_5_moe-f32", 2),
    ("qwen3_next-f32", 2),
];

fn workers_of(addresses: &[SocketAddr]) -> Workers {
    // No machine fails here, but all may be stopped together.
    Workers { parallel: Parallel::Tensor, heartbeat_timeout: Duration::from_mins(10), ..workers(addresses) }
}

pub(crate) fn options(of: &[ThreadWorker]) -> EngineOptions {
    let addresses: Vec<SocketAddr> = of.iter().map(|worker| worker.address).collect();
    EngineOptions { workers: Some(workers_of(&addresses)), ..EngineOptions::default() }
}

pub(crate) fn several(folder: &Path, count: usize) -> Vec<ThreadWorker> {
    (0..count).map(|_| ThreadWorker::start(folder)).collect()
}

fn prompt(length: usize, salt: usize) -> Vec<u32> {
    (0..length).map(|place| ((place * 31 + salt * 17 + place * place) % 88 + 4) as u32).collect()
}

/// Returns prompts with common prefixes, and one that is split into chunks.
fn prompts() -> Vec<Vec<u32>> {
    vec![prompt(9, 1), prompt(70, 1), prompt(75, 1), prompt(200, 2)]
}

/// Compares the answers of two engines up to the first token that is not clearly the best. Returns the number of compared tokens.
pub(crate) fn compare(one: &Engine, other: &Engine, what: &str) -> usize {
    let mut options = greedy(24);
    options.logprobs = Some(2);
    let mut compared = 0;
    let room = one.spec().context_length - 24;
    for prompt in prompts().into_iter().filter(|prompt| prompt.len() < room) {
        let (one, other) = (run(one, &prompt, &options), run(other, &prompt, &options));
        for (place, (token, same)) in one.tokens.iter().zip(&other.tokens).enumerate() {
            let found = token.logprob.as_ref().expect("it was asked for");
            let best: Vec<f32> = found.top.iter().map(|it| it.1).collect();
            if best[0] - best[1] < CLEAR {
                break;
            }
            assert_eq!(token.id, same.id, "{what}, {} tokens, token {place}", prompt.len());
            let here = same.logprob.as_ref().expect("it was asked for").logprob;
            assert!((here - found.logprob).abs() < 2e-3, "{what}: {here} and {}", found.logprob);
            compared += 1;
        }
    }
    compared
}

/// Returns the models of the list, or all models that can be sharded.
fn models(options: &EngineOptions) -> Vec<String> {
    if is_full() {
        let folders = std::fs::read_dir(golden_folder().join("models")).expect("they are there");
        let folders = folders.map(|entry| entry.expect("it can be listed").path());
        let divided = folders.filter(|folder| divide(folder, options, 2, Parallel::Tensor).is_ok());
        let name = |folder: PathBuf| folder.file_name().map(|name| name.to_string_lossy().into_owned());
        return divided.filter_map(name).collect();
    }
    MODELS.map(str::to_owned).to_vec()
}

#[test]
fn two_machines_answer_as_one() {
    let _turn = cpu();
    let plain = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
    for name in &models(&plain) {
        let folder = model_folder(name);
        let alone = Engine::start(&folder, &plain, |_, _| {}).expect("the model loads");
        let there = several(&folder, 1);
        let options = EngineOptions { workers: options(&there).workers, ..plain.clone() };
        let engine =
            Engine::start(&folder, &options, |_, _| {}).unwrap_or_else(|error| panic!("{name}: {error}"));
        let compared = compare(&alone, &engine, name);
        assert!(compared > 60, "{name}: {compared} tokens were compared");
        assert!(engine.stats().prefix_hits > 0, "{name}");
        assert_eq!(engine.stats().cached_tokens, alone.stats().cached_tokens, "{name}");
    }
}

#[test]
fn four_machines_answer_as_one() {
    let _turn = cpu();
    let plain = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
    for (name, heads) in OF_FOUR {
        let folder = with_key_heads(name, heads);
        let alone = Engine::start(folder.path(), &plain, |_, _| {}).expect("the model loads");
        let there = several(folder.path(), 3);
        let options = EngineOptions { workers: options(&there).workers, ..plain.clone() };
        let engine = Engine::start(folder.path(), &options, |_, _| {}).expect("all are there");
        let compared = compare(&alone, &engine, name);
        assert!(compared > 60, "{name}: {compared} tokens were compared");
    }
}

/// Covers mlx-lm's names and layouts: experts in one stack, convolution taps last.
#[test]
fn converted_models_in_four_bits_answer_as_one() {
    let _turn = cpu();
    let tiny = |name: &str, count| (name.to_owned(), model_copy(name), count);
    let wide = |name: &str, count| (format!("{name}, wide"), wide_mixture(name), count);
    for (name, source, count) in [
        tiny("qwen3_moe-f32", 1),
        tiny("gpt_oss-f32", 1),
        tiny("qwen3_next-f32", 3),
        tiny("qwen3_5_moe-f32", 3),
        wide("qwen3_moe-f32", 3),
        wide("gpt_oss-f32", 3),
    ] {
        let target = convert::in_four_bits(source.path());
        let plain = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
        let alone = Engine::start(&target, &plain, |_, _| {}).expect("the model loads");
        let there = several(&target, count);
        let options = EngineOptions { workers: self::options(&there).workers, ..plain };
        let engine = Engine::start(&target, &options, |_, _| {}).expect("all are there");
        let compared = compare(&alone, &engine, &name);
        assert!(compared > 60, "{name}: {compared} tokens were compared");
    }
}

#[test]
fn exact_requests_have_the_same_bits_alone_and_under_load() {
    let _turn = cpu();
    for (name, heads, count) in [
        ("llama-f32", 4, 1),
        ("llama-nvfp4-f16", 2, 3),
        ("qwen3_moe-f32", 4, 1),
        ("gpt_oss-f32", 4, 3),
        ("olmo2-f32", 2, 3),
        ("qwen3_5-f32", 2, 3),
        ("qwen3_5-q4-f32", 2, 1),
    ] {
        check_company(name, with_key_heads(name, heads).path(), count);
    }
    for name in ["qwen3_moe-f32", "gpt_oss-f32"] {
        let source = wide_mixture(name);
        check_company(&format!("{name} in 4 bits"), &convert::in_four_bits(source.path()), 3);
    }
}

/// Sends the same requests one by one and under load, with rank 0 and this number of workers.
fn check_company(name: &str, folder: &Path, count: usize) {
    let there = several(folder, count);
    let engine = start(folder, &options(&there));
    if !keeps_bits(&engine) {
        return;
    }
    let mut dice = Dice::new(count as u64);
    let requests: Vec<_> = (0..12).map(|_| request(&mut dice, &engine)).collect();
    let alone: Vec<_> = requests.iter().map(|it| run(&engine, &it.prompt, &it.options)).collect();
    let loaded = run_under_load(&engine, &requests);
    for (place, (alone, loaded)) in alone.iter().zip(&loaded).enumerate() {
        assert_equal(alone, loaded, &format!("{name}, request {place}"));
    }
}

#[test]
fn drafts_are_verified_and_texts_slide_on_all_machines() {
    let _turn = cpu();
    let folder = with_key_heads("llama-f32", 4);
    let there = several(folder.path(), 3);
    let plain = EngineOptions { context: Some(64), kv_bits: None, ..options(&there) };
    let text = prompt(30, 1);
    let request = RequestOptions { n_keep: Some(10), ignore_eos: true, ..greedy(120) };
    let engine = Engine::start(folder.path(), &plain, |_, _| {}).expect("all are there");
    let long = run(&engine, &text, &request).ids();
    assert_eq!(long.len(), 120);
    drop(engine);
    let texts: Texts = Arc::new(Mutex::new(vec![[text.clone(), long.clone()].concat()]));
    let drafting = lying(&texts, plain);
    let engine = Engine::start(folder.path(), &drafting, |_, _| {}).expect("all are there");
    assert_eq!(run(&engine, &text, &request).ids(), long);
    assert!(engine.stats().drafted_tokens > 0);
}

#[test]
fn states_of_recurrent_layers_go_back_on_all_machines() {
    let _turn = cpu();
    for (name, count) in [("qwen3_5-f32", 3), ("qwen3_next-f32", 1)] {
        let folder = model_folder(name);
        let there = several(&folder, count);
        let engine = Engine::start(&folder, &options(&there), |_, _| {}).expect("all are there");
        let text = prompt(200, 3);
        let one = run(&engine, &text, &greedy(40)).ids();
        drop(engine);
        let texts: Texts = Arc::new(Mutex::new(vec![[text.clone(), one.clone()].concat()]));
        let drafting = lying(&texts, options(&there));
        let engine = Engine::start(&folder, &drafting, |_, _| {}).expect("all are there");
        assert_eq!(run(&engine, &text, &greedy(40)).ids(), one, "{name}");
        let stats = engine.stats();
        assert!(stats.drafted_tokens > stats.accepted_tokens, "{name}: {stats:?}");
        // Resume from a checkpoint in the middle of the same text.
        let longer = [&text[..], &one[..10]].concat();
        assert_eq!(run(&engine, &longer, &greedy(20)).ids(), one[10..30], "{name}");
        assert!(engine.stats().cached_tokens > 0, "{name}");
    }
}

#[test]
fn several_machines_see_as_one() {
    let _turn = cpu();
    // After the first layers of Qwen3-VL, features are added on rank 0 only.
    for model in ["mistral3-f32", "qwen2_5_vl-f32", "qwen3_vl-f32", "qwen3_5-f32"] {
        let alone = pictures::start(model, &EngineOptions::default());
        let prompts = pictures::many(&alone);
        let expected: Vec<_> =
            prompts.iter().map(|prompt| pictures::answer(&alone, prompt, 12).ids()).collect();
        drop(alone);
        let there = several(&pictures::folder(model), 1);
        let engine = pictures::start(model, &options(&there));
        for (number, (prompt, expected)) in prompts.iter().zip(&expected).enumerate() {
            assert_eq!(&pictures::answer(&engine, prompt, 12).ids(), expected, "{model}, {number} pictures");
        }
        let running: Vec<_> = prompts.iter().map(|prompt| pictures::submit(&engine, prompt, 12)).collect();
        for (generation, expected) in running.into_iter().zip(&expected) {
            assert_eq!(&collect(generation).ids(), expected, "{model}");
        }
    }
}
