//! Panics in the engine: the faulty request ends with an internal error, the answers of the others do not change, and the engine releases
//! all resources. An engine that panics in every step ends with an error for all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_core::Error;
use mlx_core::engine::{
    CustomDrafter, Drafter, Engine, EngineOptions, EngineStats, FinishReason, Generation,
};
use mlx_core::sampling::TokenHistory;
use mlx_tests::scripted::scripted;
use mlx_tests::{collect, device, greedy, model_folder, run};

use super::{MODEL, expected, message, prompts, submit};

/// The length of the prompt that panics; the other prompts are shorter.
const POISON: usize = 100;

/// Waits until the engine is idle, and checks that no request holds memory or is counted.
fn assert_idle(engine: &Engine, before: &EngineStats, requests: u64) {
    let stats = loop {
        let stats = engine.stats();
        if stats.running == 0 && stats.finished == before.finished + requests {
            break stats;
        }
        std::thread::yield_now();
    };
    assert_eq!(stats.waiting, 0);
    assert_eq!((stats.reserved_bytes, stats.used_bytes), (before.reserved_bytes, before.used_bytes));
    assert!(engine.is_ready());
}

/// Checks that the answers are the same as without faults.
fn assert_whole(running: Vec<Generation>, tokens: usize) {
    for (generation, expected) in running.into_iter().zip(expected(tokens)) {
        let outcome = collect(generation);
        assert_eq!((outcome.ids(), outcome.finished.reason), (expected.ids(), FinishReason::Length));
    }
}

#[test]
fn a_request_that_makes_passes_panic_ends_alone() {
    let _turn = device();
    let engine = scripted(MODEL, |states| {
        let poisoned = states.iter().any(|state| state.offset() >= POISON + 5);
        assert!(!poisoned, "this panic is part of the test");
        Ok(())
    });
    let before = engine.stats();
    let broken = submit(&engine, &[9; POISON], &greedy(60));
    let good: Vec<Generation> = prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(30))).collect();
    let outcome = collect(broken);
    let error = message(&outcome);
    assert!(error.contains("internal error") && error.contains("part of the test"), "{error}");
    // The prompt gives the first token, and the sixth step reaches the position that panics.
    assert!((5..=6).contains(&outcome.ids().len()), "{} tokens, each once", outcome.ids().len());
    assert_whole(good, 30);
    assert_idle(&engine, &before, 7);
    assert_eq!(
        run(&engine, &[4, 5, 6], &greedy(5)).finished.reason,
        FinishReason::Length,
        "the engine must continue"
    );
}

#[test]
fn passes_that_panic_now_and_then_are_repeated() {
    let _turn = device();
    let panics = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&panics);
    let engine = scripted(MODEL, move |states| {
        let panics = states.len() > 2 && count.fetch_add(1, Ordering::Relaxed) % 9 == 4;
        assert!(!panics, "this panic is part of the test");
        Ok(())
    });
    let before = engine.stats();
    let running: Vec<Generation> =
        prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(30))).collect();
    assert_whole(running, 30);
    assert!(panics.load(Ordering::Relaxed) > 9, "several passes panicked");
    assert!(engine.stats().preemptions >= 12, "the sequences of these passes were not recomputed");
    assert_idle(&engine, &before, 6);
}

/// A drafter that panics at a certain length.
struct Bomb;

impl Drafter for Bomb {
    fn propose(&mut self, history: &TokenHistory, _: usize, _: &mut Vec<u32>) -> usize {
        assert!(history.len() < POISON + 5, "this panic is part of the test");
        0
    }
}

/// The engine also knows the faulty request between two passes.
#[test]
fn a_drafter_that_panics_ends_its_own_request() {
    let _turn = device();
    let drafter = Some(CustomDrafter::new(|| Box::new(Bomb)));
    let options = EngineOptions { drafter, ..EngineOptions::default() };
    let engine = Engine::start(&model_folder(MODEL), &options, |_, _| {}).expect("it loads");
    let before = engine.stats();
    let broken = submit(&engine, &[9; POISON], &greedy(60));
    let good: Vec<Generation> = prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(30))).collect();
    let outcome = collect(broken);
    assert!(message(&outcome).contains("internal error"));
    assert_eq!(outcome.ids().len(), 5, "all drawn tokens must be emitted");
    assert_whole(good, 30);
    assert_idle(&engine, &before, 7);
}

#[test]
fn an_engine_that_only_panics_ends_with_an_error_for_all() {
    let _turn = device();
    let engine = scripted(MODEL, |_| panic!("this panic is part of the test"));
    let mut refused = false;
    for _ in 0..20 {
        let request = engine.request(vec![4, 5, 6], &greedy(5)).expect("valid");
        let (one, other) = (engine.submit(request.clone()), engine.submit(request));
        for generation in [one, other] {
            match generation {
                Ok(generation) => {
                    let outcome = collect(generation);
                    assert!(message(&outcome).contains("internal error"), "{}", message(&outcome));
                }
                Err(Error::EngineStopped(_)) => refused = true,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(refused, "the engine must stop in the end");
    while engine.is_ready() {
        std::thread::yield_now();
    }
}
