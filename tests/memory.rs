//! Memory: an accepted request never runs out of it, excess requests wait, oversized ones are rejected with figures, and the measured
//! peak stays within the budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mlx_core::array::{active_memory, peak_memory, reset_peak_memory};
use mlx_core::engine::{Engine, EngineOptions, EngineStats, FinishReason, Generation, RequestOptions};
use mlx_core::memory_pressure::{MemoryPressure, PressureSource};
use mlx_core::weights::FloatPolicy;
use mlx_core::{Error, Result};
use mlx_tests::scale::cases;
use mlx_tests::{Dice, at_rest, collect, device, greedy, model_copy, model_folder, run};

const MODEL: &str = "llama-f32";

fn start(options: &EngineOptions) -> Result<Engine> {
    start_model(MODEL, options)
}

fn start_model(name: &str, options: &EngineOptions) -> Result<Engine> {
    Engine::start(&model_folder(name), options, |_, _| {})
}

/// Starts an engine with a budget for its model and `bytes` of requests.
fn with_request_budget(name: &str, bytes: u64, options: EngineOptions) -> Engine {
    let at_rest = start_model(name, &options).expect("it loads").stats().reserved_bytes;
    // A sixteenth is for MLX's cache of freed buffers.
    let budget = (at_rest + bytes) * 16 / 15 + 16;
    start_model(name, &EngineOptions { memory_budget: Some(budget), ..options }).expect("it fits")
}

/// A request that the engine has not checked could wait for memory forever.
#[test]
fn an_engine_runs_only_requests_that_it_has_checked() {
    let _turn = device();
    let small = with_request_budget(MODEL, 300_000, EngineOptions::default());
    let large = start(&EngineOptions::default()).expect("it loads");
    let options = RequestOptions { logprobs: Some(20), ..greedy(40) };
    let request = large.request(vec![7; 200], &options).expect("it fits into the large one");
    assert!(small.request(vec![7; 200], &options).is_err(), "the request must not fit into the small engine");
    let refused = small.submit(request.clone()).err().expect("it is refused").to_string();
    assert!(refused.contains("another engine"), "{refused}");
    assert_eq!(at_rest(&small).waiting, 0);
    assert_eq!(collect(large.submit(request).expect("it runs")).tokens.len(), 40);
}

#[test]
fn under_load_the_peak_stays_under_the_budget_and_all_memory_is_freed() {
    let _turn = device();
    // Sliding windows with post-norms and softcapped logits; experts; states of constant size.
    for name in [MODEL, "gemma2-f32", "gemma4_text-f32", "qwen3_moe-f32", "qwen3_5-f32", "nemotron_h-f32"] {
        crowd(name, EngineOptions::default());
    }
    // Weights in the types of the files.
    for name in ["llama-q4-f16", "llama-bf16", "qwen3_5-q4-f32"] {
        crowd(name, EngineOptions::default());
    }
    for (dtype, kv_bits) in [
        (FloatPolicy::F16, None),
        (FloatPolicy::F16, Some(4)),
        (FloatPolicy::Bf16, Some(8)),
        (FloatPolicy::F32, Some(4)),
    ] {
        crowd(MODEL, EngineOptions { dtype: Some(dtype), kv_bits, ..EngineOptions::default() });
    }
}

/// Runs more requests than fit into the budget at once.
fn crowd(model: &str, options: EngineOptions) {
    let before = active_memory().expect("a figure") as u64;
    let name = format!("{model} in {:?} with {:?} bits", options.dtype, options.kv_bits);
    let engine = with_request_budget(model, 2_400_000, options);
    let resting = engine.stats();
    reset_peak_memory().expect("a device");
    let mut dice = Dice::new(3);
    let mut busiest = EngineStats::default();
    let requests: Vec<(usize, RequestOptions)> = (0..cases(12))
        .map(|_| {
            let options = RequestOptions {
                max_tokens: dice.pick(&[Some(5), Some(40), Some(120), None]),
                logprobs: dice.sometimes(3, |_| 20),
                ..greedy(0)
            };
            (1 + dice.below(120), options)
        })
        .collect();
    let generations: Vec<Generation> = requests
        .iter()
        .enumerate()
        .map(|(salt, (length, options))| {
            let prompt = (0..*length).map(|index| ((index * 13 + salt * 29) % 80 + 5) as u32).collect();
            engine.submit(engine.request(prompt, options).expect("it fits")).expect("room in the queue")
        })
        .collect();
    // On a busy machine this thread may get no time while the requests run, so it first waits for the crowd.
    while busiest.running < 2 && engine.stats().finished < requests.len() as u64 {
        let stats = engine.stats();
        assert!(stats.used_bytes <= stats.reserved_bytes && stats.reserved_bytes <= stats.budget_bytes);
        if stats.waiting > 0 && stats.running > busiest.running {
            busiest = stats;
        }
        std::thread::yield_now();
    }
    for generation in generations {
        let stats = engine.stats();
        assert!(stats.used_bytes <= stats.reserved_bytes && stats.reserved_bytes <= stats.budget_bytes);
        assert_eq!(collect(generation).finished.reason, FinishReason::Length);
    }
    let peak = peak_memory().expect("a figure") as u64 - before;
    assert!(
        peak <= resting.budget_bytes,
        "{name}: {peak} bytes at the peak, {} allowed",
        resting.budget_bytes
    );
    assert!(busiest.running >= 2 && busiest.waiting > 0, "{name}: it was crowded: {busiest:?}");
    let after = at_rest(&engine);
    assert_eq!((after.reserved_bytes, after.used_bytes), (resting.reserved_bytes, resting.used_bytes));
    assert_eq!(after.finished, requests.len() as u64);
    drop(engine);
    assert_eq!(active_memory().expect("a figure") as u64, before);
}

/// Returns the model with a context of 1500 positions.
fn long_model() -> tempfile::TempDir {
    let copy = model_copy(MODEL);
    let config = copy.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("a file");
    let mut value: serde_json::Value = serde_json::from_str(&text).expect("json");
    value["max_position_embeddings"] = 1500.into();
    std::fs::write(&config, value.to_string()).expect("it can be written");
    copy
}

fn start_long(copy: &tempfile::TempDir, memory_budget: Option<u64>) -> Engine {
    let options = EngineOptions { memory_budget, ..EngineOptions::default() };
    Engine::start(copy.path(), &options, |_, _| {}).expect("it fits")
}

fn open() -> RequestOptions {
    RequestOptions { max_tokens: None, ..greedy(0) }
}

/// Returns the reserved bytes of an idle engine, and the initial reservation of a request without a token limit.
fn reservations(copy: &tempfile::TempDir) -> (u64, u64) {
    let engine = start_long(copy, None);
    let resting = engine.stats().reserved_bytes;
    let running = engine.submit(engine.request(vec![7], &open()).expect("valid")).expect("it runs");
    let promised = loop {
        let more = engine.stats().reserved_bytes - resting;
        if more > 0 {
            break more;
        }
        std::thread::yield_now();
    };
    drop(running);
    (resting, promised)
}

/// The reservation of a request without a token limit grows with its text; other requests are preempted and resume.
#[test]
fn open_requests_grow_and_all_of_them_end() {
    let _turn = device();
    let copy = long_model();
    let (resting, promised) = reservations(&copy);
    // Enough for three requests at their start, but not at their end.
    let engine = start_long(&copy, Some((resting + promised * 16 / 5) * 16 / 15));
    let prompts = [vec![7], vec![8, 9], vec![10, 11, 12]];
    let submit = |prompt: &Vec<u32>| {
        engine.submit(engine.request(prompt.clone(), &open()).expect("valid")).expect("room in the queue")
    };
    let generations: Vec<Generation> = prompts.iter().map(submit).collect();
    let lengths: Vec<usize> = generations.into_iter().map(|it| collect(it).ids().len()).collect();
    assert_eq!(lengths, [1499, 1498, 1497]);
    assert!(engine.stats().preemptions > 0, "a request must have been preempted");
}

#[test]
fn a_request_that_can_never_fit_is_refused_with_numbers() {
    let _turn = device();
    let copy = long_model();
    let (resting, promised) = reservations(&copy);
    let engine = start_long(&copy, Some((resting + promised / 2) * 16 / 15));
    let refused = |prompt: usize, tokens: usize| {
        engine.request(vec![5; prompt], &greedy(tokens)).expect_err("too large").to_string()
    };
    let numbers = |message: &str| message.contains("needs ") && message.matches("iB").count() == 2;
    let message = refused(10, 1000);
    assert!(message.starts_with("max_tokens: ") && numbers(&message), "{message}");
    let message = refused(1000, 10);
    assert!(message.starts_with("prompt: ") && numbers(&message), "{message}");
    let outcome = run(&engine, &[5; 10], &open());
    assert_eq!(outcome.finished.reason, FinishReason::Length);
    assert!((200..1000).contains(&outcome.ids().len()), "{} tokens", outcome.ids().len());
}

#[test]
fn a_model_that_does_not_fit_is_refused() {
    let _turn = device();
    let error = start(&EngineOptions { memory_budget: Some(1000), ..EngineOptions::default() });
    let message = error.err().expect("it cannot fit").to_string();
    assert!(message.starts_with("memory_budget: is 1000 B"), "{message}");
    let enough: u64 = message
        .rsplit_once("give at least ")
        .and_then(|(_, size)| size.strip_suffix("MiB")?.parse().ok())
        .expect("the least that would do");
    let budget = Some(enough << 20);
    assert!(start(&EngineOptions { memory_budget: budget, ..EngineOptions::default() }).is_ok());
}

#[test]
fn a_full_queue_refuses_with_the_queue_length() {
    let _turn = device();
    let options = EngineOptions { max_running: 1, max_waiting: 2, ..EngineOptions::default() };
    let engine = start(&options).expect("it loads");
    let mut accepted = Vec::new();
    let busy = loop {
        match engine.submit(engine.request(vec![3, 4], &greedy(200)).expect("valid")) {
            Ok(generation) => accepted.push(generation),
            Err(error) => break error,
        }
        assert!(accepted.len() < 10, "a queue of two took ten");
    };
    assert!(matches!(busy, Error::Busy { waiting: 2, retry_after: 1.. }), "{busy}");
    for generation in accepted {
        assert_eq!(collect(generation).ids().len(), 200);
    }
    assert_eq!(run(&engine, &[3], &greedy(2)).ids().len(), 2, "the memory must be available again");
}

/// The memory pressure that the test simulates.
#[derive(Clone, Default)]
struct Pressure(Arc<AtomicBool>);

impl Pressure {
    fn source(&self) -> PressureSource {
        let Self(high) = self.clone();
        let say = |high| if high { MemoryPressure::Warning } else { MemoryPressure::Normal };
        PressureSource::new(move || Some(say(high.load(Ordering::Relaxed))))
    }
}

#[test]
fn a_system_short_of_memory_gets_back_what_is_kept_and_no_answer_changes() {
    let _turn = device();
    let pressure = Pressure::default();
    for model in [MODEL, "qwen3_5-f32"] {
        pressure.0.store(false, Ordering::Relaxed);
        let options = EngineOptions { memory_pressure: Some(pressure.source()), ..EngineOptions::default() };
        let engine = start_model(model, &options).expect("it loads");
        let prompt: Vec<u32> = (0..200).map(|place| place * 7 % 80 + 5).collect();
        let first = run(&engine, &prompt, &greedy(9));
        let again = run(&engine, &prompt, &greedy(9));
        assert!(again.finished.usage.cached_tokens > 0 && engine.stats().prefixes > 0, "{model}");
        // An idle engine must notice pressure without a request.
        pressure.0.store(true, Ordering::Relaxed);
        let patience = Instant::now() + Duration::from_mins(1);
        while engine.stats().prefix_bytes > 0 {
            assert!(Instant::now() < patience, "{model}: {:?}", engine.stats());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(engine.stats().prefixes, 0);
        let under_pressure = run(&engine, &prompt, &greedy(9));
        assert_eq!(under_pressure.finished.usage.cached_tokens, 0);
        assert!(first.ids() == again.ids() && first.ids() == under_pressure.ids(), "{model}");
    }
}

/// Running answers keep their states and their checkpoints.
#[test]
fn memory_pressure_takes_nothing_from_running_requests() {
    let _turn = device();
    let pressure = Pressure::default();
    pressure.0.store(true, Ordering::Relaxed);
    for model in [MODEL, "qwen3_5-f32"] {
        let at_every_step = Some(pressure.source().every(Duration::ZERO));
        let plain = EngineOptions { exact: true, ..EngineOptions::default() };
        let engine = start_model(model, &EngineOptions { memory_pressure: at_every_step, ..plain.clone() })
            .expect("it loads");
        let calm = start_model(model, &plain).expect("it loads");
        let requests = || {
            (1..7).map(|salt| {
                ((0..40 + salt).map(|place| place * salt % 80 + 5).collect::<Vec<u32>>(), greedy(60))
            })
        };
        let alone: Vec<_> = requests().map(|(prompt, options)| run(&calm, &prompt, &options).ids()).collect();
        let submit = |(prompt, options)| {
            engine.submit(engine.request(prompt, &options).expect("valid")).expect("it runs")
        };
        let running: Vec<Generation> = requests().map(submit).collect();
        let together: Vec<_> = running.into_iter().map(|it| collect(it).ids()).collect();
        assert_eq!(together, alone, "{model}");
        assert_eq!(engine.stats().preemptions, 0, "{model}");
    }
}
