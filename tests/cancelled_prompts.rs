//! A prompt cancelled between two layers of a pass leaves no trace: the same prompt then gives the same tokens, with every kind of
//! state.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mlx_core::engine::{Canceller, Engine, FinishReason, Generation};
use mlx_tests::scripted::scripted;
use mlx_tests::{collect, cpu, engine, greedy, run};

/// One checkpoint per kind of state.
const MODELS: [&str; 12] = [
    "llama-f32",
    "gemma3_text-f32",
    "gemma4-f32",
    "deepseek_v3-f32",
    "lfm2-f32",
    "qwen3_5-f32",
    "qwen3_next-f32",
    "mamba2-f32",
    "nemotron_h-f32",
    "falcon_h1-f32",
    "granitemoehybrid-f32",
    "kimi_linear-f32",
];

fn submit(engine: &Engine, prompt: &[u32]) -> Generation {
    let request = engine.request(prompt.to_vec(), &greedy(6)).expect("a valid request");
    engine.submit(request).expect("room in the queue")
}

#[test]
fn a_prompt_that_is_cancelled_between_layers_leaves_nothing() {
    let _turn = cpu();
    for model in MODELS {
        let prompt: Vec<u32> = (0..40).map(|index| 20 + index * 7 % 60).collect();
        let expected = run(&engine(model), &prompt, &greedy(6)).ids();
        let cancelled: Arc<Mutex<Option<Canceller>>> = Arc::default();
        let script = Arc::clone(&cancelled);
        let engine = scripted(model, move |_| {
            if let Some(canceller) = script.lock().expect("no panic").take() {
                canceller.cancel();
            }
            Ok(())
        });
        let idle = engine.stats().reserved_bytes;
        // The lock is held until the generation exists; the pass waits for it between its layers.
        let mut slot = cancelled.lock().expect("no panic");
        let gone = submit(&engine, &prompt);
        *slot = Some(gone.canceller());
        drop(slot);
        let gone = collect(gone);
        assert_eq!(gone.finished.reason, FinishReason::Cancelled, "{model}");
        assert!(gone.ids().len() < 2, "{model}: it ends with the pass");
        assert_eq!(run(&engine, &prompt, &greedy(6)).ids(), expected, "{model}");
        // The engine frees a state after it sends the last event.
        let begun = Instant::now();
        while engine.stats().reserved_bytes != idle {
            assert!(begun.elapsed() < Duration::from_secs(10), "{model}: {:?}", engine.stats());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
