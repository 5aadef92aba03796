//! Failures: a fault in one request ends that request with an error, never with "stop", and no other request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use mlx_core::Error;
use mlx_core::backend::Backend;
use mlx_core::cache::SequenceState;
use mlx_core::engine::{
    Canceller, Engine, EngineOptions, FinishReason, Generation, Priority, RequestOptions, Speculate,
};
use mlx_rs::Array;
use mlx_tests::scripted::{scripted, scripted_on, twisted_on};
use mlx_tests::{Outcome, collect, cpu, device, engine, greedy, model_copy, model_folder, run};
use safetensors::{Dtype, SafeTensors, serialize};

const MODEL: &str = "llama-f32";

fn submit(engine: &Engine, prompt: &[u32], options: &RequestOptions) -> Generation {
    let request = engine.request(prompt.to_vec(), options).expect("a valid request");
    engine.submit(request).expect("room in the queue")
}

fn prompts() -> Vec<Vec<u32>> {
    (0..6).map(|stream| (0..5 + stream).map(|index| 20 + stream * 9 + index).collect()).collect()
}

/// The outcome of each prompt on an engine without faults, run one after the other.
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
    assert!(message(&collect(poisoned)).contains("not a number"));
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
    assert!(failures.load(Ordering::Relaxed) > 3, "it did fail");
}

/// Steps that overlap with the host's work and steps that do not. Faults are made on a CPU, where files are read in the stream that
/// the engine waits for.
fn backends() -> [Backend; 3] {
    let ways = [(false, false), (true, false), (true, true)];
    ways.map(|(pipelined, runs_ahead)| Backend { pipelined, runs_ahead, ..Backend::CPU })
}

/// Queues work on this thread's stream that will fail.
fn fail_on_the_device() {
    mlx_rs::transforms::async_eval([&failing_array()]).expect("nothing is read yet");
}

/// An array that fails on the device: it belongs to a file that is truncated before it is read.
fn failing_array() -> Array {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("numbers.npy");
    let head = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (4096,), }");
    let bytes =
        [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), head.as_bytes(), &1f32.to_le_bytes().repeat(4096)].concat();
    std::fs::write(&path, bytes).expect("it can be written");
    let array = mlx_rs::Array::load_numpy(&path).expect("the head is good");
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(128))
        .expect("it can be cut");
    array
}

#[test]
fn a_step_that_fails_on_the_device_is_repeated() {
    let _turn = cpu();
    for backend in backends() {
        let expected = expected(30);
        let failures = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&failures);
        let engine = scripted_on(backend, MODEL, move |caches| {
            if caches.len() > 2 && count.fetch_add(1, Ordering::Relaxed) < 3 {
                fail_on_the_device();
            }
            Ok(())
        });
        let running: Vec<Generation> =
            prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(30))).collect();
        for (generation, expected) in running.into_iter().zip(expected) {
            let outcome = collect(generation);
            assert_eq!((outcome.ids(), outcome.finished.reason), (expected.ids(), FinishReason::Length));
        }
        assert!(failures.load(Ordering::Relaxed) > 3, "it did fail");
        assert!(engine.stats().preemptions >= 3, "and was noticed");
    }
}

#[test]
fn whichever_half_of_a_step_fails_it_is_repeated() {
    let _turn = cpu();
    let backend = Backend { pipelined: true, runs_ahead: true, ..Backend::CPU };
    let expected = expected(30);
    for between in 2..9 {
        let passes = AtomicUsize::new(0);
        let engine = scripted_on(backend, MODEL, move |states| {
            // Both halves of a step come here.
            let pass = if states.len() > 2 { passes.fetch_add(1, Ordering::Relaxed) } else { 0 };
            if pass > 4 && pass < 40 && pass.is_multiple_of(between) {
                fail_on_the_device();
            }
            Ok(())
        });
        let running: Vec<Generation> =
            prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(30))).collect();
        for (generation, expected) in running.into_iter().zip(&expected) {
            let outcome = collect(generation);
            assert_eq!((outcome.ids(), outcome.finished.reason), (expected.ids(), FinishReason::Length));
        }
        let stats = engine.stats();
        assert!(stats.preemptions > 0 && stats.steps_ahead > 0, "{stats:?}");
    }
}

#[test]
fn a_step_whose_error_reached_another_wait_is_repeated() {
    let _turn = cpu();
    for backend in backends() {
        let mut expected = expected(200);
        expected.remove(2);
        let cancelled: Arc<Mutex<Option<Canceller>>> = Arc::default();
        let script = Arc::clone(&cancelled);
        let engine = scripted_on(backend, MODEL, move |caches| {
            if caches.len() == prompts().len()
                && let Some(canceller) = script.lock().expect("no panic").take()
            {
                // The fault is not the step's own: the first wait reports it.
                fail_on_the_device();
                canceller.cancel();
            }
            Ok(())
        });
        let mut third = cancelled.lock().expect("no panic");
        let mut running: Vec<Generation> =
            prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(200))).collect();
        *third = Some(running[2].canceller());
        drop(third);
        let gone = collect(running.remove(2));
        assert_eq!(gone.finished.reason, FinishReason::Cancelled);
        for (generation, expected) in running.into_iter().zip(expected) {
            assert_eq!(collect(generation).ids(), expected.ids());
        }
        assert_eq!(engine.stats().preemptions, 6, "every row of the step starts over");
    }
}

#[test]
fn prompts_that_fail_on_the_device_end_or_are_repeated() {
    let _turn = cpu();
    for backend in backends() {
        let expected = expected(1);
        let passes = AtomicUsize::new(0);
        let meeting = Arc::new(Barrier::new(2));
        let first_pass = Arc::clone(&meeting);
        // A first prompt is alone in its pass, from before the others come until all of them wait. Theirs is the second pass; those
        // that are repeated have passes of their own.
        let engine = scripted_on(backend, MODEL, move |_| {
            match passes.fetch_add(1, Ordering::Relaxed) {
                0 => {
                    first_pass.wait();
                    first_pass.wait();
                }
                pass if pass % 4 == 1 => fail_on_the_device(),
                _ => {}
            }
            Ok(())
        });
        let first = submit(&engine, &[7, 8, 9], &greedy(1));
        meeting.wait();
        let running: Vec<Generation> =
            prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(1))).collect();
        meeting.wait();
        assert_eq!(collect(first).finished.reason, FinishReason::Length);
        let mut failed = 0;
        for (generation, expected) in running.into_iter().zip(expected) {
            let outcome = collect(generation);
            if outcome.finished.reason == FinishReason::Length {
                assert_eq!(outcome.ids(), expected.ids());
            } else {
                assert!(message(&outcome).contains("[read]"));
                failed += 1;
            }
        }
        assert!((1..6).contains(&failed), "{failed} of 6 failed");
    }
}

#[test]
fn prompts_that_fail_together_are_repeated_one_by_one() {
    let _turn = cpu();
    for backend in backends() {
        let prompts = [vec![30, 31], vec![40, 41, 42]];
        let expected = prompts.each_ref().map(|prompt| run(&engine(MODEL), prompt, &greedy(1)).ids());
        // Prefill passes: the stream's, one over both prompts, the stream's again where it ran beside them, and one per prompt.
        let twice: &[usize] = if backend.pipelined { &[1, 4] } else { &[1, 3] };
        for (failing, fails_again) in [(&[1][..], false), (twice, true)] {
            let (engine, step) = engine_with_failing_prompts(backend, failing, true);
            let [one, other] = read_beside_a_stream(&engine, &step, &prompts);
            assert_eq!((one.ids(), one.finished.reason.clone()), (expected[0].clone(), FinishReason::Length));
            if fails_again {
                assert!(message(&other).contains("[read]"));
            } else {
                assert_eq!(
                    (other.ids(), &other.finished.reason),
                    (expected[1].clone(), &FinishReason::Length)
                );
            }
            // Where decode passes are on the device beside prefill, the error may belong to either.
            let rows = 2 + u64::from(backend.pipelined);
            assert_eq!(engine.stats().preemptions, rows, "all that ran beside the failure start over");
        }
    }
}

#[test]
fn a_prompt_whose_last_pass_fails_is_not_shared() {
    let _turn = cpu();
    for backend in backends() {
        let prompt = [40, 41, 42];
        let expected = run(&engine(MODEL), &prompt, &greedy(1)).ids();
        let (engine, step) = engine_with_failing_prompts(backend, &[1], false);
        let [one, other] = read_beside_a_stream(&engine, &step, &[prompt.to_vec(), prompt.to_vec()]);
        if backend.pipelined {
            // A decode pass was on the device beside it, so both are computed again, alone.
            assert_eq!((&one.ids(), &one.finished.reason), (&expected, &FinishReason::Length));
        } else {
            assert!(message(&one).contains("[read]"), "it was alone on the device");
        }
        assert_eq!((other.ids(), other.finished.reason), (expected, FinishReason::Length));
    }
}

/// Submits two prompts during a `step` of a stream, so that they are prefilled together; the stream must run to its end.
fn read_beside_a_stream(engine: &Engine, step: &Barrier, prompts: &[Vec<u32>; 2]) -> [Outcome; 2] {
    let mut stream = submit(engine, &[9; 50], &greedy(60));
    stream.next().expect("it runs");
    step.wait();
    let both = prompts.each_ref().map(|prompt| submit(engine, prompt, &greedy(1)));
    step.wait();
    let outcomes = both.map(collect);
    assert_eq!(collect(stream).finished.reason, FinishReason::Length);
    outcomes
}

/// An engine on which the logits of some prompts fail on the device, with `early` before any other work. Its tenth step waits twice, at
/// the start and end of the concurrent work; the earlier steps are slow, which leaves time for two prompts between two of them.
fn engine_with_failing_prompts(
    backend: Backend,
    failing: &'static [usize],
    early: bool,
) -> (Engine, Arc<Barrier>) {
    let barrier = Arc::new(Barrier::new(2));
    let waits = Arc::clone(&barrier);
    let (prompts, steps, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), Arc::new(Mutex::new(None)));
    let fault = Arc::clone(&failed);
    let script = move |caches: &mut [&mut SequenceState]| {
        if caches[0].offset() > 0 {
            let step = steps.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(if step < 10 { 10 } else { 0 }));
            if step == 10 {
                waits.wait();
                waits.wait();
            }
        } else if failing.contains(&prompts.fetch_add(1, Ordering::Relaxed)) {
            *failed.lock().expect("no panic") = Some(failing_array());
        }
        Ok(())
    };
    let twist = move |logits: Array| match fault.lock().expect("no panic").take() {
        Some(array) => {
            let logits = logits.multiply(array.max(false)?)?;
            if early {
                mlx_rs::transforms::async_eval([&logits])?;
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(logits)
        }
        None => Ok(logits),
    };
    (twisted_on(backend, MODEL, script, twist), barrier)
}

#[test]
fn equal_prompts_that_always_fail_all_end() {
    let _turn = cpu();
    for backend in backends() {
        let engine = scripted_on(backend, MODEL, |_| {
            fail_on_the_device();
            Ok(())
        });
        let running: Vec<Generation> = (0..4).map(|_| submit(&engine, &[7, 8, 9], &greedy(5))).collect();
        for generation in running {
            assert!(message(&collect(generation)).contains("[read]"));
        }
    }
}

#[test]
fn a_broken_sequence_ends_alone() {
    let _turn = device();
    // A sequence at position 60 breaks every pass that it is part of.
    let engine = scripted(MODEL, |caches| {
        let broken = caches.iter().any(|cache| cache.offset() >= 60);
        if broken { Err(Error::Mlx("a poisoned cache".into())) } else { Ok(()) }
    });
    let broken = submit(&engine, &[9; 40], &greedy(60));
    let good: Vec<Generation> = prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(30))).collect();
    let outcome = collect(broken);
    assert!(message(&outcome).contains("a poisoned cache"));
    assert_eq!(outcome.ids().len(), 21, "the earlier tokens are kept and emitted once");
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
fn a_panic_ends_every_stream_with_an_error_and_the_engine_is_not_ready() {
    let _turn = device();
    let passes = AtomicUsize::new(0);
    let engine = scripted(MODEL, move |_| {
        assert!(passes.fetch_add(1, Ordering::Relaxed) < 20, "this panic is part of the test");
        Ok(())
    });
    assert!(engine.is_ready());
    let running: Vec<Generation> =
        prompts().iter().map(|prompt| submit(&engine, prompt, &greedy(60))).collect();
    for generation in running {
        assert!(message(&collect(generation)).contains("the engine has stopped"));
    }
    while engine.is_ready() {
        std::thread::yield_now();
    }
    let request = engine.request(vec![1], &greedy(1)).expect("valid");
    assert!(matches!(engine.submit(request), Err(Error::EngineStopped(_))));
}

#[test]
fn a_preempted_stream_resumes_where_it_was() {
    let _turn = device();
    // With its own answer as a draft the low one would have ended before the high one comes.
    let speculate = Speculate::Off;
    let options = EngineOptions { max_running: 1, speculate, ..EngineOptions::default() };
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
    if engine.exactness() == mlx_core::engine::Exactness::Bit {
        assert_eq!(tokens, alone.tokens, "nothing is repeated, and every bit is the same");
    }
    assert_eq!(engine.stats().preemptions, 1);
}
