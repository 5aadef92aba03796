//! One model on several machines that each have a part of every layer: it answers as on one, but for the order of sums. Workers are threads
//! here; they are reached over TCP as others are. `TENSOR_MODELS=all` runs every checkpoint that can be shared out.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mlx_core::distributed::{Key, Parallel, Workers};
use mlx_core::engine::{Engine, EngineOptions, Exactness, RequestOptions, Speculate};
use mlx_core::inspect::divide;
use mlx_tests::pictures;
use mlx_tests::workers::{ThreadWorker, with_key_heads, workers};
use mlx_tests::{Dice, collect, cpu, golden_folder, greedy, model_folder, run};

use crate::exactness::{assert_equal, request, run_under_load, start};

use crate::speculation::{Texts, liar};

/// Where the best two tokens are at least so far apart, the order of sums does not change which is the best.
const CLEAR: f32 = 1e-4;

/// Families whose layers can be shared out between two machines: of each way in which checkpoints lay out attention and experts one.
const MODELS: [&str; 21] = [
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
];

fn workers_of(addresses: &[SocketAddr]) -> Workers {
    Workers { parallel: Parallel::Tensor, ..workers(addresses) }
}

fn options(of: &[ThreadWorker]) -> EngineOptions {
    let addresses: Vec<SocketAddr> = of.iter().map(|worker| worker.address).collect();
    EngineOptions { workers: Some(workers_of(&addresses)), ..EngineOptions::default() }
}

fn several(folder: &Path, count: usize) -> Vec<ThreadWorker> {
    (0..count).map(|_| ThreadWorker::start(folder)).collect()
}

fn prompt(length: usize, salt: usize) -> Vec<u32> {
    (0..length).map(|place| ((place * 31 + salt * 17 + place * place) % 88 + 4) as u32).collect()
}

/// Prompts that begin alike, and one that is cut into chunks.
fn prompts() -> Vec<Vec<u32>> {
    vec![prompt(9, 1), prompt(70, 1), prompt(75, 1), prompt(200, 2)]
}

/// Compares the answers of two engines until the first token that is not clearly the best. How many were compared.
fn compare(one: &Engine, other: &Engine, what: &str) -> usize {
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

/// Those of the list, or all that can be shared out.
fn models(options: &EngineOptions) -> Vec<String> {
    if std::env::var("TENSOR_MODELS").is_ok_and(|all| all == "all") {
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
    }
}

#[test]
fn four_machines_answer_as_one() {
    let _turn = cpu();
    let plain = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
    for name in ["llama-f32", "qwen3-f32", "llama-nvfp4-f16", "qwen3_moe-f32", "gpt_oss-f32"] {
        let folder = with_key_heads(name, 4);
        let alone = Engine::start(folder.path(), &plain, |_, _| {}).expect("the model loads");
        let there = several(folder.path(), 3);
        let options = EngineOptions { workers: options(&there).workers, ..plain.clone() };
        let engine = Engine::start(folder.path(), &options, |_, _| {}).expect("all are there");
        let compared = compare(&alone, &engine, name);
        assert!(compared > 60, "{name}: {compared} tokens were compared");
    }
}

#[test]
fn exact_requests_have_the_same_bits_alone_and_under_load() {
    let _turn = cpu();
    for (name, count) in [("llama-f32", 1), ("llama-nvfp4-f16", 3), ("qwen3_moe-f32", 1), ("gpt_oss-f32", 3)]
    {
        let folder = with_key_heads(name, 4);
        let there = several(folder.path(), count);
        let engine = start(folder.path(), &options(&there));
        assert_eq!(engine.exactness(), Exactness::Bit, "{name}");
        let mut dice = Dice::new(count as u64);
        let requests: Vec<_> = (0..12).map(|_| request(&mut dice, &engine)).collect();
        let alone: Vec<_> = requests.iter().map(|it| run(&engine, &it.prompt, &it.options)).collect();
        let loaded = run_under_load(&engine, &requests);
        for (place, (alone, loaded)) in alone.iter().zip(&loaded).enumerate() {
            assert_equal(alone, loaded, &format!("{name}, request {place}"));
        }
    }
}

#[test]
fn drafts_are_verified_and_texts_slide_on_all_machines() {
    let _turn = cpu();
    let folder = with_key_heads("llama-f32", 4);
    let there = several(folder.path(), 3);
    let plain = EngineOptions { context: Some(64), kv_bits: None, ..options(&there) };
    let text = prompt(30, 1);
    let request = RequestOptions { slide: Some(10), ignore_eos: true, ..greedy(120) };
    let engine = Engine::start(folder.path(), &plain, |_, _| {}).expect("all are there");
    let long = run(&engine, &text, &request).ids();
    assert_eq!(long.len(), 120);
    drop(engine);
    let texts: Texts = Arc::new(Mutex::new(vec![[text.clone(), long.clone()].concat()]));
    let drafting = EngineOptions {
        speculate: Speculate::Auto,
        drafter: Some(liar(&texts)),
        always_draft: true,
        ..plain
    };
    let engine = Engine::start(folder.path(), &drafting, |_, _| {}).expect("all are there");
    assert_eq!(run(&engine, &text, &request).ids(), long);
    assert!(engine.stats().drafted_tokens > 0);
}

#[test]
fn several_machines_see_as_one() {
    let _turn = cpu();
    // Behind the first layers of Qwen3-VL, features are added on rank 0 alone.
    for model in ["mistral3-f32", "qwen2_5_vl-f32", "qwen3_vl-f32"] {
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

#[test]
fn every_machine_has_its_part_of_every_layer_and_no_more() {
    let _turn = cpu();
    for name in ["llama-f32", "llama-nvfp4-f16", "qwen3_moe-f32", "gpt_oss-f32"] {
        let folder = with_key_heads(name, 4);
        let alone = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
        let whole = Engine::start(folder.path(), &alone, |_, _| {}).expect("it loads").spec().clone();
        let there = several(folder.path(), 3);
        let options = EngineOptions { workers: options(&there).workers, ..alone.clone() };
        let engine = Engine::start(folder.path(), &options, |_, _| {}).expect("all are there");
        let plan = divide(folder.path(), &alone, 4, Parallel::Tensor).expect("it can be shared out").plan;
        let shares = &plan.shares;
        assert_eq!(engine.spec().weight_bytes, shares[0].weight_bytes, "{name}");
        assert!(shares[1..].iter().all(|it| it.weight_bytes == shares[1].weight_bytes), "{shares:?}");
        let pipeline = divide(folder.path(), &alone, 2, Parallel::Pipeline).expect("it has two layers").plan;
        let layers: u64 = whole.weight_bytes - (shares[0].weight_bytes - shares[1].weight_bytes);
        // Norms, routers and biases are everywhere.
        assert!(
            4 * shares[1].weight_bytes < layers * 6 / 5,
            "{name}: {} of {layers}",
            shares[1].weight_bytes
        );
        assert!(
            shares.iter().all(|it| 4 * it.cache_bytes_per_token == whole.footprint.per_token),
            "{shares:?}"
        );
        assert!(plan.crossings > pipeline.crossings && plan.token_bytes > pipeline.token_bytes);
        assert_ne!(engine.spec().fingerprint, whole.fingerprint);
    }
    // The promise is what the machine with the least can keep.
    let folder = model_folder("llama-f32");
    let small = ThreadWorker::start_with(&folder, Key::default(), Some(64 << 20));
    let engine = Engine::start(&folder, &options(&[small]), |_, _| {}).expect("it is there");
    let given = engine.stats().budget_bytes;
    assert!(given < 64 << 20, "{given} bytes");
}

#[test]
fn what_cannot_be_shared_out_is_refused_with_a_reason() {
    let _turn = cpu();
    let refusal = |name: &str, ranks: usize| {
        let plain = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
        let refused = divide(&model_folder(name), &plain, ranks, Parallel::Tensor);
        refused.map(drop).expect_err(name).to_string()
    };
    for (name, ranks, why) in [
        ("llama-f32", 3, "on 3 machines: num_key_value_heads is 2"),
        ("llama-mha-sharded-f32", 3, "num_key_value_heads is 4"),
        ("gemma-f32", 2, "num_key_value_heads is 1"),
        ("llama-q4-f16", 2, "o_proj.scales has 1 groups of packed numbers"),
        ("olmo2-f32", 2, "norms of queries and keys reach over all heads"),
        ("stablelm-f32", 2, "norms of queries and keys reach over all heads"),
        ("qwen3_5-f32", 2, "only layers of plain attention are shared out"),
        ("deepseek_v3-f32", 2, "only layers of plain attention are shared out"),
        ("mamba2-f32", 2, "only layers of plain attention are shared out"),
    ] {
        let found = refusal(name, ranks);
        assert!(found.starts_with("parallel: cannot be tensor") && found.contains(why), "{name}: {found}");
        assert!(found.contains("use pipeline"), "{found}");
    }
    // An engine says the same, before anything is loaded.
    let folder = model_folder("gemma-f32");
    let there = several(&folder, 1);
    let error = Engine::start(&folder, &options(&there), |_, _| {}).map(drop).expect_err("one head");
    assert!(error.to_string().contains("num_key_value_heads is 1"), "{error}");
    // Every other family is either shared out or refused like this.
    let folders = std::fs::read_dir(golden_folder().join("models")).expect("they are there");
    let mut refused = 0;
    for folder in folders.map(|entry| entry.expect("it can be listed").path()) {
        match divide(&folder, &EngineOptions::default(), 2, Parallel::Tensor) {
            Ok(_) => {}
            Err(error) => {
                let error = error.to_string();
                assert!(
                    error.contains("cannot be tensor") || error.contains("ranks: "),
                    "{folder:?}: {error}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused < 45, "{refused} were refused");
}
