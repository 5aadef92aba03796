//! Prefix sharing: a common prefix of prompts in flight is computed once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mlx_core::backend::Backend;
use mlx_core::engine::{Engine, Generation, RequestOptions, Task};
use mlx_core::sentence_transformers::Pooling;
use mlx_tests::scripted::scripted_on;
use mlx_tests::{Outcome, collect, device, engine, golden, greedy, run};

const MODEL: &str = "llama-f32";

/// Submits prompts that are all in flight before the first of them is computed.
fn together(prompts: &[Vec<u32>], tokens: usize) -> (Engine, Vec<Outcome>) {
    let submitted = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&submitted);
    // Chunks of 64 tokens on any device.
    let engine = scripted_on(Backend::CPU, MODEL, move |_| {
        while !gate.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(())
    });
    let request = |prompt: &Vec<u32>| engine.request(prompt.clone(), &greedy(tokens)).expect("valid");
    let generations = engine.submit_all(prompts.iter().map(request).collect()).expect("room in the queue");
    submitted.store(true, Ordering::Release);
    let outcomes = generations.into_iter().map(|it: Generation| collect(it)).collect();
    (engine, outcomes)
}

#[test]
fn equal_prompts_are_computed_once() {
    let _turn = device();
    let prompt: Vec<u32> = (0..150).map(|index| 5 + index % 70).collect();
    let alone = run(&engine(MODEL), &prompt, &greedy(12));
    let (engine, outcomes) = together(&vec![prompt.clone(); 8], 12);
    assert_eq!(engine.stats().prompt_tokens, 150);
    assert!(outcomes.iter().all(|outcome| outcome.ids() == alone.ids()));
    let cached: Vec<usize> = outcomes.iter().map(|it| it.finished.usage.cached_tokens).collect();
    assert_eq!(cached, [0, 150, 150, 150, 150, 150, 150, 150]);
}

#[test]
fn a_shared_prefix_is_computed_once_up_to_a_chunk_boundary() {
    let _turn = device();
    let prompt = |end: u32| (0..120).map(|index| 5 + index % 70).chain([end; 20]).collect::<Vec<u32>>();
    let expected: Vec<Outcome> = {
        let engine = engine(MODEL);
        (80..84).map(|end| run(&engine, &prompt(end), &greedy(12))).collect()
    };
    let (_, outcomes) = together(&(80..84).map(prompt).collect::<Vec<_>>(), 12);
    for (outcome, expected) in outcomes.iter().zip(&expected) {
        assert_eq!(outcome.ids(), expected.ids());
    }
    // The first prompt computes everything; the others reuse complete chunks of it.
    let cached: Vec<usize> = outcomes.iter().map(|it| it.finished.usage.cached_tokens).collect();
    assert_eq!(cached[0], 0);
    assert_eq!(cached[1..], [64; 3]);
}

/// The source is cancelled in the second of its three chunks. Then one of the other requests computes the prompt, and the last one shares it.
#[test]
fn waiting_prompts_continue_when_the_source_is_cancelled() {
    let _turn = device();
    let prompt: Vec<u32> = (0..150).map(|index| 5 + index % 70).collect();
    let alone = run(&engine(MODEL), &prompt, &greedy(12));
    let (passes, may_pass) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (begun, limit) = (Arc::clone(&passes), Arc::clone(&may_pass));
    let engine = scripted_on(Backend::CPU, MODEL, move |_| {
        let pass = begun.fetch_add(1, Ordering::AcqRel);
        while limit.load(Ordering::Acquire) <= pass {
            std::thread::yield_now();
        }
        Ok(())
    });
    let request = || engine.request(prompt.clone(), &greedy(12)).expect("valid");
    let mut generations = engine.submit_all(vec![request(), request(), request()]).expect("room");
    may_pass.store(1, Ordering::Release);
    while passes.load(Ordering::Acquire) < 2 {
        std::thread::yield_now();
    }
    drop(generations.remove(0));
    may_pass.store(usize::MAX, Ordering::Release);
    let outcomes: Vec<Outcome> = generations.into_iter().map(collect).collect();
    assert!(outcomes.iter().all(|outcome| outcome.ids() == alone.ids()));
    let cached: Vec<usize> = outcomes.iter().map(|it| it.finished.usage.cached_tokens).collect();
    assert_eq!(cached, [0, 150], "the last request must share the prefix");
    assert_eq!(engine.stats().prompt_tokens, 128 + 150, "two chunks of the source, and the prompt once");
}

/// An embedding does not depend on chunks or concurrent requests.
#[test]
fn an_embedding_is_the_same_in_chunks_and_under_load() {
    let _turn = device();
    let engine = engine(MODEL);
    let prompt: Vec<u32> = (0..150).map(|index| 5 + index % 70).collect();
    let embed = |prompt: &[u32], pooling: Pooling| {
        let options = RequestOptions { task: Task::Embed(pooling.into()), ..RequestOptions::default() };
        let outcome = run(&engine, prompt, &options);
        assert!(outcome.tokens.is_empty());
        outcome.embedding.expect("a vector")
    };
    let hidden = engine.spec().hidden_size;
    // The mean over one token equals its last hidden state.
    assert_eq!(embed(&prompt[..1], Pooling::Mean), embed(&prompt[..1], Pooling::Last));
    let (mean, last) = (embed(&prompt, Pooling::Mean), embed(&prompt, Pooling::Last));
    assert_eq!((mean.len(), last.len()), (hidden, hidden));
    let states: Vec<Vec<f32>> = (1..=prompt.len()).map(|end| embed(&prompt[..end], Pooling::Last)).collect();
    for index in 0..hidden {
        let sum: f64 = states.iter().map(|state| f64::from(state[index])).sum();
        let expected = sum / states.len() as f64;
        assert!((f64::from(mean[index]) - expected).abs() < 1e-3, "{index}: {} and {expected}", mean[index]);
    }
    assert!(golden::worst_difference(&last, &states[149], hidden) < 1e-4);
    // Short prompts share passes.
    let options = RequestOptions { task: Task::Embed(Pooling::Last.into()), ..RequestOptions::default() };
    let request = |end: usize| engine.request(prompt[..end].to_vec(), &options).expect("it can run");
    let ends = [3, 20, 1, 33, 7, 14];
    let together = engine.submit_all(ends.map(request).into()).expect("they are queued");
    for (end, generation) in ends.into_iter().zip(together) {
        let vector = collect(generation).embedding.expect("a vector");
        assert!(golden::worst_difference(&vector, &states[end - 1], hidden) < 1e-4, "{end}");
    }
}
