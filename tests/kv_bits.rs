//! Quantized KV caches: less memory, nearly the same numbers, and every answer is labeled approximate.

use mlx_core::engine::{Engine, EngineOptions, Exactness, RequestOptions};
use mlx_tests::{Outcome, device, greedy, model_folder, run};

const MODEL: &str = "llama-f32";

fn start(kv_bits: Option<u8>) -> Engine {
    let options = EngineOptions { kv_bits, ..EngineOptions::default() };
    Engine::start(&model_folder(MODEL), &options, |_, _| {}).expect("it loads")
}

fn prompt() -> Vec<u32> {
    (0..200).map(|index| index * 7 % 80 + 5).collect()
}

/// Returns the mean difference of the log probabilities of a text.
fn difference(one: &Outcome, other: &Outcome) -> f64 {
    let of = |outcome: &Outcome| -> Vec<f32> {
        outcome.prompt_tokens.iter().filter_map(|token| Some(token.logprob.as_ref()?.logprob)).collect()
    };
    let (one, other) = (of(one), of(other));
    assert_eq!((one.len(), other.len()), (199, 199));
    one.iter().zip(&other).map(|(one, other)| f64::from((one - other).abs())).sum::<f64>() / 199.0
}

#[test]
fn fewer_bits_take_less_memory_and_are_labeled_approximate() {
    let _turn = device();
    let scored = RequestOptions { prompt_logprobs: Some(0), ..greedy(8) };
    let full = start(None);
    let exact = run(&full, &prompt(), &scored);
    assert_ne!(exact.finished.exactness, Exactness::Approximate);
    let mut differences = Vec::new();
    // Bytes per value: 4, or its bits plus a 64th of a scale and a bias.
    for (bits, bytes) in [(8, 1.0 + 8.0 / 64.0), (4, 0.5 + 8.0 / 64.0)] {
        let engine = start(Some(bits));
        assert_eq!(engine.exactness(), Exactness::Approximate);
        let outcome = run(&engine, &prompt(), &scored);
        assert_eq!(outcome.finished.exactness, Exactness::Approximate);
        differences.push(difference(&exact, &outcome));
        // A stored prefix has the same shape in fewer bytes.
        let cached_bytes = |engine: &Engine| {
            run(engine, &prompt(), &greedy(8));
            run(engine, &[5], &greedy(1));
            engine.stats().prefix_bytes as f64
        };
        let ratio = cached_bytes(&engine) / cached_bytes(&start(None));
        assert!((ratio - bytes / 4.0).abs() < 0.01, "{bits} bits take {ratio}");
    }
    // Different heads of this tiny model share a group, which is the hardest case. Four bits more give sixteen times the levels.
    let (eight, four) = (differences[0], differences[1]);
    assert!(eight > 0.0 && eight < 0.05 && four > 6.0 * eight && four < 40.0 * eight, "{differences:?}");
}

/// Two engines give the same bits, also after a context shift. After a cache hit, the end of the prompt reads quantized keys and values
/// instead of exact ones, so probabilities are only close.
#[test]
fn the_same_request_gives_the_same_answer() {
    let _turn = device();
    let engine = start(Some(8));
    let short = RequestOptions { logprobs: Some(2), ..greedy(8) };
    let [first, again] = [(); 2].map(|()| run(&engine, &prompt(), &short));
    let cached = [&first, &again].map(|outcome| outcome.finished.usage.cached_tokens);
    assert!(cached[0] == 0 && cached[1] > 0, "{cached:?} tokens of the prompts were cached");
    assert_eq!(first.tokens, run(&start(Some(8)), &prompt(), &short).tokens);
    for (one, other) in first.tokens.iter().zip(&again.tokens) {
        let [one_logprob, other_logprob] =
            [one, other].map(|token| token.logprob.as_ref().expect("asked for").logprob);
        assert_eq!(one.id, other.id);
        assert!((one_logprob - other_logprob).abs() < 0.05, "{one_logprob} and {other_logprob}");
    }
    let sliding = RequestOptions { logprobs: Some(2), n_keep: Some(6), ..greedy(300) };
    let alone = || run(&start(Some(8)), &prompt(), &sliding).tokens;
    let shifted = alone();
    assert!(
        prompt().len() + shifted.len() > engine.spec().context_length,
        "the text is too short for a context shift"
    );
    assert_eq!(shifted, alone());
    // With full precision the probabilities differ, so the quantized cache was in use.
    assert_ne!(shifted, run(&start(None), &prompt(), &sliding).tokens);
}

#[test]
fn unsupported_bits_are_refused() {
    let options = EngineOptions { kv_bits: Some(5), ..EngineOptions::default() };
    let _turn = device();
    let error = Engine::start(&model_folder(MODEL), &options, |_, _| {}).err().expect("refused");
    assert_eq!(error.to_string(), "kv_bits: is 5; it must be 4 or 8");
}
