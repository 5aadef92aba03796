//! Faults in one request end that request with an error, never with "stop", and do not affect other requests.

mod on_the_device;
mod panics;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_core::Error;
use mlx_core::engine::{
    Engine, EngineOptions, FinishReason, Generation, Priority, RequestOptions, Speculate,
};
use mlx_tests::scripted::scripted;
use mlx_tests::{Outcome, collect, device, engine, greedy, keeps_bits, model_copy, model_folder, run};
use safetensors::{Dtype, SafeTensors, serialize};

const MODEL: &str = "llama-f32";

fn submit(engine: &Engine, prompt: &[u32], options: &RequestOptions) -> Generation {
    let request = engine.request(prompt.to_vec(), options).expect("a valid request");
    engine.submit(request).expect("room in the queue")
}

fn prompts() -> Vec<Vec<u32>> {
    (0..6).map(|stream| (0..5 + stream).map(|index| 20 + stream * 9 + index).collect()).collect()
}

/// Returns the outcome of each prompt on an engine without faults, one after the other.
fn expected(tokens: usize) -> Vec<Outcome> {
    let engine = engine(MODEL);
    prompts().iter().map(|prompt| run(&engine, prompt, &greedy(tokens))).collect()
}

fn message(outcome: &Outcome) -> &str {
    match &outcome.finished.reason {
        FinishReason::Error(message) => message,
        other => panic!("ended by {other:?} and not by an error"),
    }
}

#[test]
fn logits_that_are_nan_end_one_stream() {
    let _turn = device();
    let copy = model_copy(MODEL);
    poison_embedding(copy.path(), 77);
    let engine = Engine::start(copy.path(), &EngineOptions::default(), |_, _| {}).expect("it loads");
    let good: Vec<Generation> = prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(30))).collect();
    let poisoned = submit(&engine, &[5, 77, 6], &greedy(30));
    assert!(message(&collect(poisoned)).contains("NaN"));
    for (generation, expected) in good.into_iter().zip(expected(30)) {
        let outcome = collect(generation);
        assert_eq!((outcome.ids(), outcome.finished.reason), (expected.ids(), FinishReason::Length));
    }
    assert!(engine.is_ready());
}

/// Writes NaN into the embedding row of one token.
fn poison_embedding(folder: &std::path::Path, token: usize) {
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).expect("the fixture has one file");
    let tensors = SafeTensors::deserialize(&bytes).expect("a good file");
    let poisoned = tensors.tensors().into_iter().map(|(name, view)| {
        let mut data = view.data().to_vec();
        if name == "model.embed_tokens.weight" {
            assert_eq!(view.dtype(), Dtype::F32);
            let width = view.shape()[1] * 4;
            for value in data[token * width..(token + 1) * width].chunks_mut(4) {
                value.copy_from_slice(&f32::NAN.to_le_bytes());
            }
        }
        (name, view.dtype(), view.shape().to_vec(), data)
    });
    let poisoned: Vec<_> = poisoned.collect();
    let views = poisoned.iter().map(|(name, dtype, shape, data)| {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), data);
        (name.as_str(), view.expect("the same shape"))
    });
    std::fs::write(&path, serialize(views, None).expect("it can be written")).expect("it can be written");
}

#[test]
fn a_batched_step_that_fails_is_repeated_one_by_one() {
    let _turn = device();
    let failures = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&failures);
    let engine = scripted(MODEL, move |caches| {
        let fails = caches.len() > 2 && count.fetch_add(1, Ordering::Relaxed) < 3;
        if fails { Err(Error::Mlx("a fault of the device".into())) } else { Ok(()) }
    });
    let running: Vec<Generation> =
        prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(30))).collect();
    for (generation, expected) in running.into_iter().zip(expected(30)) {
        let outcome = collect(generation);
        assert_eq!((outcome.ids(), outcome.finished.reason), (expected.ids(), FinishReason::Length));
    }
    assert!(failures.load(Ordering::Relaxed) > 3, "the script did not fail often enough");
}

#[test]
fn a_broken_sequence_ends_alone() {
    let _turn = device();
    // A sequence longer than 60 positions breaks every pass that contains it. The second half of a pass has the position of its row.
    let engine = scripted(MODEL, |caches| {
        let broken = caches.iter().any(|cache| cache.offset() > 60);
        if broken { Err(Error::Mlx("a poisoned cache".into())) } else { Ok(()) }
    });
    let broken = submit(&engine, &[9; 40], &greedy(60));
    let good: Vec<Generation> = prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(30))).collect();
    let outcome = collect(broken);
    assert!(message(&outcome).contains("a poisoned cache"));
    assert_eq!(outcome.ids().len(), 21, "the earlier tokens must be emitted once");
    for (generation, expected) in good.into_iter().zip(expected(30)) {
        assert_eq!(collect(generation).ids(), expected.ids());
    }
}

#[test]
fn a_prompt_that_fails_ends_alone() {
    let _turn = device();
    let passes = AtomicUsize::new(0);
    let engine = scripted(MODEL, move |_| match passes.fetch_add(1, Ordering::Relaxed) {
        0 => Err(Error::Mlx("no such luck".into())),
        _ => Ok(()),
    });
    let outcomes: Vec<Outcome> = prompts().iter().map(|prompt| run(&engine, prompt, &greedy(5))).collect();
    assert!(message(&outcomes[0]).contains("no such luck"));
    assert!(outcomes[1..].iter().all(|outcome| outcome.finished.reason == FinishReason::Length));
}

#[test]
fn a_preempted_stream_resumes_where_it_was() {
    let _turn = device();
    // With its own answer as a draft, the low-priority request would end before the high-priority one arrives.
    let speculate = Speculate::Off;
    let options = EngineOptions { max_running: 1, speculate, exact: true, ..EngineOptions::default() };
    let engine = Engine::start(&model_folder(MODEL), &options, |_, _| {}).expect("it loads");
    let with = |priority| RequestOptions { priority, logprobs: Some(2), ..greedy(120) };
    let alone = run(&engine, &[4, 5, 6], &with(Priority::Low));
    let mut low = submit(&engine, &[4, 5, 6], &with(Priority::Low));
    let first = low.next().expect("it runs");
    let high = run(&engine, &[8, 9], &with(Priority::High));
    assert_eq!(high.finished.reason, FinishReason::Length);
    let rest = collect(low);
    let mlx_core::engine::Event::Token(first) = first else { panic!("a token comes first") };
    let tokens: Vec<_> = std::iter::once(first).chain(rest.tokens).collect();
    assert_eq!(tokens.iter().map(|token| token.id).collect::<Vec<_>>(), alone.ids());
    if keeps_bits(&engine) {
        assert_eq!(tokens, alone.tokens, "no token is repeated, and every bit is the same");
    }
    assert_eq!(engine.stats().preemptions, 1);
}
