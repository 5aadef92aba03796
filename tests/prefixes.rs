//! A request reuses the cached prefix of an earlier one, which changes no answer.

use mlx_core::engine::{Engine, EngineOptions, Exactness, Miss, RequestOptions};
use mlx_tests::{Outcome, at_rest, collect, device, exact_level, greedy, model_folder, run};

const MODEL: &str = "llama-f32";

fn start(options: &EngineOptions) -> Engine {
    Engine::start(&model_folder(MODEL), options, |_, _| {}).expect("it loads")
}

fn free() -> EngineOptions {
    EngineOptions { exact: false, ..EngineOptions::default() }
}

fn exact() -> EngineOptions {
    EngineOptions { exact: true, ..EngineOptions::default() }
}

fn text(salt: u32, length: u32) -> Vec<u32> {
    (0..length).map(|place| (place * 7 + salt * (place / 10 + 1)) % 80 + 5).collect()
}

fn cached(outcome: &Outcome) -> usize {
    outcome.finished.usage.cached_tokens
}

#[test]
fn what_is_alike_is_taken_over_and_at_least_one_token_is_computed() {
    let _turn = device();
    let engine = start(&free());
    let prompt = |length: usize, end: u32| [&text(1, 77)[..length], &vec![end; 77 - length]].concat();
    let outcomes = [prompt(77, 0), prompt(77, 0), prompt(51, 90), prompt(47, 91)]
        .map(|prompt| run(&engine, &prompt, &greedy(5)));
    assert_eq!(outcomes.each_ref().map(cached), [0, 76, 51, 47]);
    // The cache has the prompt and all but the last token of the answer.
    let misses = outcomes.map(|outcome| outcome.finished.usage.miss);
    assert_eq!(misses, [None, None, Some(Miss { at: 51, cached: 81 }), Some(Miss { at: 47, cached: 81 })]);
    let miss = engine.last_miss().expect("two prompts left the known text");
    assert_eq!((miss.position, miss.token, miss.cached_token), (47, 91, text(1, 77)[47]));
    assert_eq!(miss.cached_text, engine.folder().tokenizer.decode(&[miss.cached_token], false));
    let stats = engine.stats();
    assert_eq!((stats.prefix_hits, stats.prompt_tokens), (3, 77 + 1 + 26 + 30));
}

#[test]
fn a_short_text_that_is_left_is_no_miss() {
    let _turn = device();
    let engine = start(&free());
    let prompt = text(1, 40);
    run(&engine, &prompt, &greedy(5));
    let other = run(&engine, &[&prompt[..20], &[90]].concat(), &greedy(5));
    assert_eq!((cached(&other), other.finished.usage.miss), (20, None));
    assert_eq!(engine.last_miss().map(|miss| (miss.position, miss.cached_length)), Some((20, 44)));
}

/// The answer is cached too, so the next turn of a chat computes only the new tokens.
#[test]
fn a_turn_computes_only_what_is_new() {
    let _turn = device();
    for (options, whole) in [(free(), true), (exact(), false)] {
        let engine = start(&options);
        let cold = start(&EngineOptions { prefix_cache: Some(0), ..options });
        let mut prompt = text(2, 40);
        let mut before = 0;
        for turn in 0..6 {
            let outcome = run(&engine, &prompt, &greedy(9));
            // All but the last token of the answer, which no step has processed.
            let expected = if whole || before == 0 { before } else { (before - 8) / 64 * 64 };
            assert_eq!(cached(&outcome), expected, "turn {turn}");
            let alone = run(&cold, &prompt, &greedy(9));
            assert_eq!((cached(&alone), alone.ids()), (0, outcome.ids()), "turn {turn}");
            before = prompt.len() + 8;
            prompt.extend(outcome.ids());
            prompt.extend(text(turn + 3, 20));
        }
        assert_eq!(at_rest(&engine).prefixes, 1, "each turn must replace the previous prefix");
        assert_eq!(cold.stats().prefix_bytes, 0);
    }
}

/// One engine serves both kinds. An exact request never reuses the prefix of an ordinary one; an ordinary request reuses any prefix.
#[test]
fn exactness_is_a_property_of_the_request() {
    let _turn = device();
    let of_device = exact_level(&model_folder(MODEL));
    let engine = start(&free());
    let ask = |prompt: &[u32], exact: bool| {
        let options = RequestOptions { exact: Some(exact), logprobs: Some(0), ..greedy(9) };
        run(&engine, prompt, &options)
    };
    let prompt = text(2, 140);
    let ordinary = ask(&prompt, false);
    let exact = ask(&prompt, true);
    assert_eq!((cached(&ordinary), cached(&exact)), (0, 0));
    assert_eq!(ordinary.finished.exactness, Exactness::Sampling);
    assert_eq!(exact.finished.exactness, of_device);
    // Whole chunks of the exact prompt; all but the last token of the ordinary text.
    let longer = [prompt, ordinary.ids(), text(3, 20)].concat();
    assert_eq!(cached(&ask(&longer, true)), 128);
    assert_eq!(cached(&ask(&longer, false)), 148);
}

/// A cancelled prompt stays cached; a failed request leaves nothing in the cache.
#[test]
fn what_was_computed_before_a_cancellation_is_kept() {
    let _turn = device();
    let engine = start(&free());
    let prompt = text(4, 60);
    let endless = RequestOptions { max_tokens: Some(150), ..greedy(0) };
    let mut generation =
        engine.submit(engine.request(prompt.clone(), &endless).expect("valid")).expect("room");
    generation.next();
    generation.canceller().cancel();
    let outcome = collect(generation);
    let tokens = [prompt, outcome.ids(), vec![7]].concat();
    let again = run(&engine, &tokens, &greedy(1));
    // The first token was taken from the stream before it was collected.
    assert!(cached(&again) >= 60, "{} of {}", cached(&again), tokens.len());
}

/// Cached prefixes are evicted when memory is short: no request is rejected or fails, and answers do not change.
#[test]
fn what_is_kept_gives_way_to_requests() {
    let _turn = device();
    let resting = start(&free()).stats().reserved_bytes;
    let cold = start(&EngineOptions { prefix_cache: Some(0), ..free() });
    for (room, hits) in [(910_000, false), (1_500_000, true)] {
        let budget = (resting + room) * 16 / 15 + 16;
        let options = EngineOptions { memory_budget: Some(budget), prefix_cache: Some(u64::MAX), ..free() };
        let engine = start(&options);
        for salt in 0..40 {
            let prompt = text(salt % 8, 30 + 5 * (salt % 20));
            let outcome = run(&engine, &prompt, &greedy(20));
            assert_eq!(outcome.ids(), run(&cold, &prompt, &greedy(20)).ids());
            let stats = engine.stats();
            assert!(stats.reserved_bytes + stats.prefix_bytes <= stats.budget_bytes, "{stats:?}");
        }
        let stats = engine.stats();
        assert!(stats.prefix_evictions > 0, "{stats:?}");
        assert!(stats.prefix_hits > 0 || !hits, "{stats:?}");
    }
}
