//! Exactness: an exact request gives the same bits alone and under any load. docs/exactness.md lists the guarantees.
//!
//! `MLX_TEST_SCALE=40` makes a long run, `EXACTNESS_MODEL=FOLDER` adds your own model, `EXACTNESS_ONLY=NAME,NAME` skips all others.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use mlx_core::cache::DiskOptions;
use mlx_core::engine::{Client, Engine, EngineOptions, Priority, RequestOptions, Speculate, Task};
use mlx_core::sampling::{SamplingDefaults, SamplingOptions, TokenLogprob};
use mlx_core::weights::FloatPolicy;
use mlx_tests::scale::cases;
use mlx_tests::{Dice, Outcome, collect, cpu, keeps_bits, model_folder, run};

use crate::halves::in_bf16;

/// Random requests per model.
const REQUESTS: usize = 16;

/// A random request of any kind.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) prompt: Vec<u32>,
    pub(super) options: RequestOptions,
}

fn sampling(dice: &mut Dice) -> SamplingOptions {
    SamplingOptions {
        temperature: Some(dice.pick(&[0.0, 0.0, 0.3, 0.8, 1.0, 1.4])),
        top_k: dice.sometimes(4, |dice| dice.below(60) as u32 + 1),
        typical_p: dice.sometimes(8, |dice| dice.pick(&[0.3, 0.9])),
        top_p: dice.sometimes(4, |dice| dice.pick(&[0.5, 0.9, 0.99])),
        min_p: dice.sometimes(4, |dice| dice.pick(&[0.01, 0.1])),
        xtc_probability: dice.sometimes(6, |_| 0.7),
        xtc_threshold: Some(dice.pick(&[0.01, 0.1])),
        repetition_penalty: dice.sometimes(4, |_| 1.3),
        frequency_penalty: dice.sometimes(4, |_| 0.4),
        presence_penalty: dice.sometimes(4, |_| 0.6),
        penalty_last_n: dice.sometimes(3, |dice| dice.pick(&[-1, 8, 40])),
        dry_multiplier: dice.sometimes(5, |_| 0.8),
        dry_allowed_length: Some(1),
        logit_bias: dice.sometimes(5, |dice| vec![(dice.below(90) as u32, 2.5)]).unwrap_or_default(),
        seed: Some(dice.below(1 << 30) as u64),
        ..SamplingOptions::default()
    }
}

/// Returns prompts with common prefixes; some are equal.
fn prompt(dice: &mut Dice, engine: &Engine) -> Vec<u32> {
    let longest = engine.spec().context_length / 2;
    let (family, length) = (dice.below(4), 1 + dice.below(longest - 1));
    let shared = dice.pick(&[0, length / 2, length, length]);
    let token = |place: usize, salt: usize| ((place * 31 + salt * 17 + place * place) % 88 + 4) as u32;
    let salt = dice.below(1000);
    (0..length).map(|place| token(place, if place < shared { family } else { salt })).collect()
}

pub(super) fn request(dice: &mut Dice, engine: &Engine) -> Request {
    let prompt = match dice.below(3) {
        // Equal prompts in flight are computed once.
        0 => vec![7; engine.spec().context_length / 3],
        _ => prompt(dice, engine),
    };
    let room = engine.spec().context_length - prompt.len();
    let stop = ["e", " a", "the", "zz", "\n"];
    let options = RequestOptions {
        speech: None,
        audio: Vec::new(),
        images: Vec::new(),
        sampling: sampling(dice),
        sampling_defaults: dice.pick(&[SamplingDefaults::OpenAi, SamplingDefaults::Chat]),
        max_tokens: Some((1 + dice.below(40)).min(room)),
        stop: dice.sometimes(3, |dice| vec![dice.pick(&stop).to_owned()]).unwrap_or_default(),
        ignore_eos: dice.below(2) == 0,
        logprobs: dice.sometimes(2, |dice| dice.below(21)),
        prompt_logprobs: dice.sometimes(6, |dice| dice.below(4)),
        task: Task::Generate,
        client: Client(dice.below(3) as u64),
        log_id: String::new(),
        priority: dice.pick(&[Priority::Low, Priority::Normal, Priority::High]),
        n_keep: None,
        exact: None,
        speculate: None,
        constraint: None,
        think_budget: None,
        begun: 0,
        is_continued: false,
        is_message: false,
        prompt_progress: dice.below(2) == 0,
        unpooled: 0,
        second: None,
    };
    Request { prompt, options }
}

/// Returns a concurrent request, which may not be exact.
fn stranger(dice: &mut Dice, engine: &Engine) -> Request {
    let mut request = request(dice, engine);
    request.options.exact = Some(dice.below(2) == 0);
    request
}

fn bits(logprob: Option<&TokenLogprob>) -> Option<(u32, Vec<(u32, u32)>)> {
    logprob.map(|it| (it.logprob.to_bits(), it.top.iter().map(|top| (top.0, top.1.to_bits())).collect()))
}

/// Compares two outcomes, except for timings and cache counts.
pub(super) fn assert_equal(alone: &Outcome, loaded: &Outcome, name: &str) {
    assert_eq!(alone.ids(), loaded.ids(), "{name}: tokens");
    assert_eq!(alone.text, loaded.text, "{name}: text");
    assert_eq!(alone.finished.reason, loaded.finished.reason, "{name}: reason");
    for (one, other) in alone.tokens.iter().zip(&loaded.tokens) {
        assert_eq!(bits(one.logprob.as_ref()), bits(other.logprob.as_ref()), "{name}: log-probabilities");
        assert_eq!((&one.text, &one.delta), (&other.text, &other.delta), "{name}: pieces of text");
    }
    assert_eq!(alone.prompt_tokens.len(), loaded.prompt_tokens.len(), "{name}: scored prompt");
    for (one, other) in alone.prompt_tokens.iter().zip(&loaded.prompt_tokens) {
        assert_eq!(bits(one.logprob.as_ref()), bits(other.logprob.as_ref()), "{name}: scores of the prompt");
    }
}

pub(super) fn start(folder: &std::path::Path, options: &EngineOptions) -> Engine {
    Engine::start(folder, &EngineOptions { exact: true, keep_quantized: true, ..options.clone() }, |_, _| {})
        .expect("the model loads")
}

/// Runs the requests from several threads in random order, mixed with requests that are cancelled.
pub(super) fn run_under_load(engine: &Engine, requests: &[Request]) -> Vec<Outcome> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    let mut dice = Dice::new(99);
    for place in (1..order.len()).rev() {
        order.swap(place, dice.below(place + 1));
    }
    let queue = Mutex::new(order);
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(vec![None; requests.len()]);
    let next = || queue.lock().expect("no worker panics").pop();
    std::thread::scope(|scope| {
        for worker in 0..10 {
            let (next, outcomes) = (&next, &outcomes);
            scope.spawn(move || {
                let mut dice = Dice::new(1000 + worker);
                while let Some(index) = next() {
                    std::thread::sleep(Duration::from_micros(dice.below(4000) as u64));
                    let Request { prompt, options } = &requests[index];
                    let stranger = dice.sometimes(3, |dice| stranger(dice, engine));
                    let stranger = stranger.map(|it| engine.request(it.prompt, &it.options).expect("valid"));
                    let mut stranger = stranger.map(|it| engine.submit(it).expect("room in the queue"));
                    let outcome = run(engine, prompt, options);
                    // It may be waiting, in its prompt or in its answer.
                    if let Some(stranger) = &mut stranger {
                        stranger.canceller().cancel();
                    }
                    outcomes.lock().expect("no worker panics")[index] = Some(outcome);
                }
            });
        }
    });
    outcomes.into_inner().expect("no worker panics").into_iter().map(|it| it.expect("all ran")).collect()
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
