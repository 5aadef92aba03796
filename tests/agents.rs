//! Agents on models whose states cannot be truncated: a long system prompt, growing turns, reasoning that the template drops, and
//! branches. They reuse about as many tokens as on a model that stores every position.

use std::path::Path;

use mlx_core::backend::{AttentionKernels, Backend};
use mlx_core::engine::{Engine, EngineOptions};
use mlx_tests::{Dice, device, greedy, model_copy, run};

/// The tokens that a template writes before an answer. It drops the last two and the reasoning after them from later prompts.
const HEADER: [u32; 5] = [290, 291, 292, 293, 294];
const DROPPED: usize = 2;

fn text(salt: u64, length: usize) -> Vec<u32> {
    let mut dice = Dice::new(salt);
    (0..length).map(|_| dice.below(270) as u32 + 8).collect()
}

/// Returns a model with a longer context than its fixture.
fn long_model(name: &str) -> tempfile::TempDir {
    let copy = model_copy(name);
    let config = copy.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("a file");
    assert!(text.contains("\"max_position_embeddings\": 256"), "{name} has a context of 256");
    let longer = text.replace("\"max_position_embeddings\": 256", "\"max_position_embeddings\": 8192");
    std::fs::write(&config, longer).expect("it can be written");
    copy
}

/// Returns the number of prompt tokens in two branches of a conversation, and the number of reused ones.
fn traffic(model: &Path, backend: Backend, exact: bool) -> (usize, usize) {
    let options = EngineOptions { backend: Some(backend), exact, ..EngineOptions::default() };
    let engine = Engine::start(model, &options, |_, _| {}).expect("it loads");
    let system = text(1, 1500);
    let mut branches = [[system.clone(), text(2, 40)].concat(), [system, text(3, 60)].concat()];
    let (mut all, mut taken) = (0, 0);
    for turn in 0..6 {
        for (branch, history) in branches.iter_mut().enumerate() {
            let prompt = [history.as_slice(), &HEADER].concat();
            let outcome = run(&engine, &prompt, &greedy(24));
            all += prompt.len();
            taken += outcome.finished.usage.cached_tokens;
            // The next prompt lacks the reasoning but has the answer and the result of a tool.
            history.extend(&HEADER[..HEADER.len() - DROPPED]);
            history.extend(&outcome.ids()[14..]);
            history.extend(text(10 * turn + branch as u64, 130));
        }
    }
    (all, taken)
}

#[test]
fn hybrid_models_take_over_nine_tenths_of_what_a_full_model_takes_over() {
    let _turn = device();
    let (full, hybrid) = (long_model("qwen3-f32"), long_model("qwen3_5-f32"));
    let gpu_shapes =
        Backend { fused_attention: true, attention_kernels: AttentionKernels::Metal, ..Backend::CPU };
    for (backend, exact) in [(Backend::CPU, false), (gpu_shapes, false), (Backend::CPU, true)] {
        let (all, most) = traffic(full.path(), backend, exact);
        let (same, taken) = traffic(hybrid.path(), backend, exact);
        assert_eq!(all, same);
        assert!(most * 10 >= all * 8, "{most} of {all}: the traffic repeats itself");
        assert!(taken * 10 >= most * 9, "{taken} of {most}, exact {exact}, {backend:?}");
    }
}
