//! Work that fails on the device, with or without concurrent work: it is repeated, or ends its request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use mlx_core::backend::Backend;
use mlx_core::cache::SequenceState;
use mlx_core::engine::{Canceller, Engine, FinishReason, Generation};
use mlx_rs::Array;
use mlx_tests::scripted::{scripted_on, twisted_on};
use mlx_tests::{Outcome, collect, cpu, engine, greedy, run};

use super::{MODEL, expected, message, prompts, submit};

/// Backends with and without pipelined steps. The faults are made on a CPU, where files are read in the stream that the engine waits
/// for.
fn backends() -> [Backend; 3] {
    let ways = [(false, false), (true, false), (true, true)];
    ways.map(|(pipelined, runs_ahead)| Backend { pipelined, lookahead: runs_ahead, ..Backend::CPU })
}

/// Queues failing work on this thread's stream.
fn fail_on_the_device() {
    mlx_rs::transforms::async_eval([&failing_array()]).expect("nothing is read yet");
}

/// Returns an array that fails on the device: its file is truncated before it is read.
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
        assert!(failures.load(Ordering::Relaxed) > 3, "the script did not fail often enough");
        assert!(engine.stats().preemptions >= 3, "the failures were not noticed");
    }
}

#[test]
fn whichever_half_of_a_step_fails_it_is_repeated() {
    let _turn = cpu();
    let backend = Backend { pipelined: true, lookahead: true, ..Backend::CPU };
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
                // The fault is not the step's own; the first wait reports it.
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
        assert_eq!(engine.stats().preemptions, 6, "every row of the step must be recomputed");
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
        // The first prompt is alone in its pass and holds it until all others wait. They share the second pass; repeated ones have their own
        // passes.
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
        // Prefill passes after the stream's: one over both prompts, the stream's again if it ran at the same time, and one per prompt.
        let twice: &[usize] = if backend.pipelined { &[0, 3] } else { &[0, 2] };
        for (failing, fails_again) in [(&[0][..], false), (twice, true)] {
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
            // If decode passes are on the device during prefill, the error may belong to either.
            let rows = 2 + u64::from(backend.pipelined);
            assert_eq!(engine.stats().preemptions, rows, "all concurrent rows must be recomputed");
        }
    }
}

#[test]
fn a_prompt_whose_last_pass_fails_is_not_shared() {
    let _turn = cpu();
    for backend in backends() {
        let prompt = [40, 41, 42];
        let expected = run(&engine(MODEL), &prompt, &greedy(1)).ids();
        let (engine, step) = engine_with_failing_prompts(backend, &[0], false);
        let [one, other] = read_beside_a_stream(&engine, &step, &[prompt.to_vec(), prompt.to_vec()]);
        if backend.pipelined {
            // A decode pass was on the device at the same time, so both are recomputed separately.
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

/// Returns an engine on which the logits of some prompts after its first step fail on the device, with `early` before any other work.
/// The step after the first ten waits twice, at the start and at the end of the concurrent work. Enough prompts have been measured that two
/// short ones fit between two steps, even if the machine stalled in one of them.
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
            if steps.fetch_add(1, Ordering::Relaxed) == 10 {
                waits.wait();
                waits.wait();
            }
        } else if steps.load(Ordering::Relaxed) > 0
            && failing.contains(&prompts.fetch_add(1, Ordering::Relaxed))
        {
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
    let engine = twisted_on(backend, MODEL, script, twist);
    for token in 50..66 {
        run(&engine, &[token; 50], &greedy(1));
    }
    (engine, barrier)
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
