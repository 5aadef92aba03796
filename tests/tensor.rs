//! A model with a part of every layer in each of several processes: it answers as one process, except for the order of sums. A full run tries
//! every checkpoint that can be sharded.

use std::path::{Path, PathBuf};

use mlx_core::distributed::Parallel;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions};
use mlx_core::inspect::divide;
use mlx_tests::divisible::{experts_in_fp8, wide_mixture, with_four_delta_heads, with_key_heads};
use mlx_tests::machines::{self, several};
use mlx_tests::scale::is_full;
use mlx_tests::worker_process::WorkerProcess;
use mlx_tests::{at_rest, collect, cpu, golden_folder, greedy, model_copy, model_folder, pictures, run};

use crate::distributed::{check_company, check_drafts, exact, prompt};
use crate::worker_parts::{MLX, in_four_bits};

/// The gap between the best two tokens above which the order of sums does not change the best one.
const CLEAR: f32 = 1e-4;

/// Families with layers that two machines can share: one for each layout of attention, recurrent layers and experts. Gemma has one key
/// head, which both machines hold.
const MODELS: [&str; 23] = [
    "llama-bias-f32",
    "llama-mxfp8-f32",
    "qwen3-f32",
    "phi3-f32",
    "internlm2-f32",
    "cohere2-f32",
    "gemma2-f32",
    "qwen2_moe-f32",
    "mixtral-f32",
    "gpt_oss-f32",
    "olmo2-f32",
    "stablelm-f32",
    "qwen3_5-q4-f32",
    "qwen3_next-f32",
    "deepseek_v3-f32",
    "glm4_moe_lite-f32",
    "minicpm3-f32",
    "mamba2-f32",
    "falcon_h1-f32",
    "granitemoehybrid-f32",
    "nemotron_h-f32",
    "nemotron_h-mlx-f32",
    "lfm2_moe-f32",
];

/// Models for four machines, with their number of key heads: with fewer than four, two or four machines hold the same one.
const OF_FOUR: [(&str, usize); 6] = [
    ("llama-nvfp4-f16", 4),
    ("gpt_oss-f32", 2),
    ("gemma-f32", 1),
    ("olmo2-f32", 2),
    ("qwen3_5_moe-f32", 2),
    ("qwen3_next-f32", 2),
];

/// Models for four machines whose heads are as they need. Two machines share a group of Mamba-2, and its norm.
const UNCHANGED_OF_FOUR: [&str; 6] =
    ["deepseek_v2-f32", "mamba2-f32", "falcon_h1-f32", "nemotron_h-f32", "bailing_hybrid-f32", "lfm2-f32"];

/// Two layouts of Kimi Linear.
const DELTA_PER_DIMENSION: [(&str, usize); 2] = [("kimi_linear-f32", 3), ("kimi_linear-mlx-f32", 1)];

/// Starts an engine with these workers.
pub(crate) fn start(folder: &Path, of: &[WorkerProcess], options: &EngineOptions) -> Engine {
    machines::start(MLX, folder, of, Parallel::Tensor, options)
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

/// Compares several machines to one.
fn compare_with(name: &str, folder: &Path, count: usize) {
    let plain = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
    let alone = Engine::start(folder, &plain, |_, _| {}).expect("the model loads");
    let there = several(MLX, folder, count);
    let engine = start(folder, &there, &plain);
    let compared = compare(&alone, &engine, name);
    assert!(compared > 60, "{name}: {compared} tokens were compared");
    let stats = at_rest(&engine);
    assert!(stats.prefix_hits > 0, "{name}");
    assert_eq!(stats.cached_tokens, at_rest(&alone).cached_tokens, "{name}");
}

#[test]
fn two_machines_answer_as_one() {
    let _turn = cpu();
    for name in &models(&EngineOptions { keep_quantized: true, ..EngineOptions::default() }) {
        compare_with(name, &model_folder(name), 1);
    }
}

#[test]
fn four_machines_answer_as_one() {
    let _turn = cpu();
    for (name, heads) in OF_FOUR {
        compare_with(name, with_key_heads(name, heads).path(), 3);
    }
    for name in UNCHANGED_OF_FOUR {
        compare_with(name, &model_folder(name), 3);
    }
}

#[test]
fn kimis_delta_rule_answers_on_several_machines_as_on_one() {
    let _turn = cpu();
    for (name, count) in DELTA_PER_DIMENSION {
        compare_with(name, with_four_delta_heads(name).path(), count);
    }
}

/// Covers mlx-lm's names and layouts: experts in one stack, convolution taps last.
#[test]
fn converted_models_in_four_bits_answer_as_one() {
    let _turn = cpu();
    for (name, source, count) in [
        ("qwen3_moe-f32", model_copy("qwen3_moe-f32"), 1),
        ("qwen3_next-f32", model_copy("qwen3_next-f32"), 3),
        ("gpt_oss-f32", wide_mixture("gpt_oss-f32"), 3),
    ] {
        compare_with(name, &in_four_bits(source.path()), count);
    }
}

#[test]
fn packed_stacks_of_experts_answer_on_two_machines_as_on_one() {
    let _turn = cpu();
    compare_with("qwen3_vl_moe in fp8", experts_in_fp8().path(), 1);
}

#[test]
fn exact_requests_have_the_same_bits_alone_and_under_load_in_tensors() {
    let _turn = cpu();
    for (name, heads, count) in [("llama-nvfp4-f16", 2, 3), ("gpt_oss-f32", 4, 1), ("qwen3_5-q4-f32", 2, 1)] {
        let folder = with_key_heads(name, heads);
        let there = several(MLX, folder.path(), count);
        check_company(&start(folder.path(), &there, &exact()), name, count);
    }
}

#[test]
fn drafts_are_verified_on_all_machines_with_parts() {
    let _turn = cpu();
    for (name, count) in
        [("llama-f32", 1), ("qwen3_5-f32", 3), ("qwen3_next-f32", 1), ("bailing_hybrid-f32", 1)]
    {
        let folder = model_folder(name);
        let there = several(MLX, &folder, count);
        check_drafts(name, |options| start(&folder, &there, options));
    }
}

#[test]
fn texts_slide_on_all_machines_with_parts() {
    let _turn = cpu();
    let folder = with_key_heads("llama-f32", 4);
    let options = EngineOptions { context: Some(64), ..EngineOptions::default() };
    let request = RequestOptions { n_keep: Some(10), ignore_eos: true, ..greedy(120) };
    let answer = |engine: Engine| run(&engine, &prompt(30, 1), &request).ids();
    let alone = answer(Engine::start(folder.path(), &options, |_, _| {}).expect("the model loads"));
    let there = several(MLX, folder.path(), 3);
    assert_eq!(answer(start(folder.path(), &there, &options)), alone);
}

#[test]
fn several_machines_with_parts_see_as_one() {
    let _turn = cpu();
    // After the first layers of Qwen3-VL, features are added on rank 0 only.
    for (model, count) in [("mistral3-f32", 1), ("qwen3_vl-f32", 1)] {
        let alone = pictures::start(model, &EngineOptions::default());
        let prompts = pictures::many(&alone);
        let expected: Vec<_> =
            prompts.iter().map(|prompt| pictures::answer(&alone, prompt, 12).ids()).collect();
        drop(alone);
        let folder = pictures::folder(model);
        let there = several(MLX, &folder, count);
        let engine = start(&folder, &there, &EngineOptions::default());
        let running: Vec<_> = prompts.iter().map(|prompt| pictures::submit(&engine, prompt, 12)).collect();
        for (generation, expected) in running.into_iter().zip(&expected) {
            assert_eq!(&collect(generation).ids(), expected, "{model}");
        }
    }
}
