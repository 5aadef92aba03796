//! Layers that do not store every position: layers with a sliding window drop positions outside of it, and recurrent layers have a state of
//! constant size. This saves memory and changes no result.

use mlx_core::array::Rows;
use mlx_core::cache::{Rollback, SequenceState, Variant};
use mlx_core::model::{self, Batch, Model};
use mlx_core::weights::WeightPolicy;
use mlx_tests::{Dice, device, model_folder};

/// The longest pass of these tests.
const RUN: usize = 64;

fn load(name: &str) -> Box<dyn Model> {
    let policy = WeightPolicy::for_device(false).expect("a device");
    model::load(&model_folder(name), policy, &mut |_, _| {}).expect("the fixture loads")
}

fn text(length: usize) -> Vec<u32> {
    let mut dice = Dice::new(3);
    (0..length).map(|_| dice.below(300) as u32 + 8).collect()
}

/// Returns the bits of the last row of logits after a pass over `tokens`; a pass over one token is a decode step.
fn pass(model: &dyn Model, cache: &mut SequenceState, tokens: &[u32]) -> Vec<u32> {
    let start = cache.offset();
    let batch = match tokens {
        [token] => Batch::decode(&[(*token, start)]),
        tokens => Batch::prompt(tokens, start),
    };
    let hidden = model.forward(batch, &mut [cache]).expect("the pass runs");
    let rows = Rows::new(&model.logits(&hidden).expect("the head runs")).expect("rows");
    let values = rows.values().expect("values");
    values[values.len() - rows.width()..].iter().map(|logit| logit.to_bits()).collect()
}

/// Runs `tokens` in passes that end at multiples of 16, and one by one after 64 positions.
fn prefill(model: &dyn Model, cache: &mut SequenceState, tokens: &[u32]) {
    while cache.offset() < tokens.len() {
        let start = cache.offset();
        let end = if start < 64 { (start / 16 + 1) * 16 } else { start + 1 };
        pass(model, cache, &tokens[start..end.min(tokens.len())]);
    }
}

/// All layers of this model have a window of 16, so its memory is bounded.
#[test]
fn memory_stays_within_the_window_and_the_reservation() {
    let _turn = device();
    let model = load("mistral-f32");
    let (tokens, mut cache) = (text(240), model.new_state(Variant::default()));
    prefill(model.as_ref(), &mut cache, &tokens);
    let footprint = model.spec().footprint;
    let all = footprint.per_token * tokens.len() as u64;
    assert!((cache.bytes() as u64) < all * 3 / 5, "{} of {all} bytes", cache.bytes());
    assert!(cache.bytes() as u64 <= footprint.state(tokens.len(), RUN));
    // Twice the text takes no more memory.
    assert_eq!(footprint.state(5000, RUN), footprint.state(10_000, RUN));
}

#[test]
fn a_cache_is_truncated_exactly_or_refuses() {
    let _turn = device();
    // All layers have a window; some have one; none has one.
    for name in ["mistral-f32", "gemma3_text-f32", "llama-f32"] {
        let model = load(name);
        let (tokens, mut dice) = (text(200), Dice::new(7));
        let (mut cut, mut refused) = (0, 0);
        for length in [20, 64, 90, 130, 200] {
            let back = length - dice.below(length.min(120));
            let mut straight = model.new_state(Variant::default());
            prefill(model.as_ref(), &mut straight, &tokens[..back]);
            let mut cache = model.new_state(Variant::default());
            prefill(model.as_ref(), &mut cache, &tokens[..length]);
            let fork = cache.fork(back).expect("the copy is made");
            let goes_back = cache.nearest(back) == back;
            assert_eq!(fork.is_some(), goes_back, "{name}");
            assert_eq!(cache.rollback(back) == Rollback::Done, goes_back, "{name}");
            let Some(mut fork) = fork else {
                assert_eq!(cache.offset(), length, "{name}: nothing was changed");
                refused += 1;
                continue;
            };
            cut += 1;
            assert_eq!((cache.offset(), fork.offset()), (back, back), "{name}");
            for token in [9, 30, 31] {
                let expected = pass(model.as_ref(), &mut straight, &[token]);
                assert_eq!(pass(model.as_ref(), &mut cache, &[token]), expected, "{name}: cut to {back}");
                assert_eq!(pass(model.as_ref(), &mut fork, &[token]), expected, "{name}: copied to {back}");
            }
        }
        assert!(cut > 0, "{name}: no cache was cut");
        assert_eq!(refused > 0, name != "llama-f32", "{name}: {refused} refused");
    }
}

#[test]
fn a_cache_goes_back_to_its_own_length() {
    let _turn = device();
    let model = load("mistral-f32");
    let mut cache = model.new_state(Variant::default());
    prefill(model.as_ref(), &mut cache, &text(150));
    let mut copy = cache.fork(150).expect("the copy is made").expect("it reaches so far");
    assert!(copy.bytes() <= cache.bytes());
    assert_eq!(pass(model.as_ref(), &mut copy, &[5]), pass(model.as_ref(), &mut cache, &[5]));
    assert!(
        cache.nearest(3) == 0
            && cache.rollback(3) == Rollback::StartOver
            && cache.fork(3).expect("no copy is made").is_none()
    );
}

/// A sequence of any length resumes from a checkpoint as if nothing had followed.
#[test]
fn a_state_returns_to_its_checkpoint() {
    let _turn = device();
    for name in [
        "mistral-f32",
        "gemma3_text-f32",
        "gemma4_text-f32",
        "lfm2-f32",
        "qwen3_5-f32",
        "falcon_h1-f32",
        "mamba2-f32",
        "nemotron_h-f32",
        "kimi_linear-f32",
        "llama-f32",
    ] {
        let model = load(name);
        let tokens = text(240);
        let mut straight = model.new_state(Variant::default());
        prefill(model.as_ref(), &mut straight, &tokens[..70]);
        let mut state = model.new_state(Variant::default());
        prefill(model.as_ref(), &mut state, &tokens[..70]);
        state.checkpoint(false).expect("a copy of the window");
        prefill(model.as_ref(), &mut state, &tokens);
        let windows = name != "llama-f32";
        // Layers with a window or a state of constant size return to the checkpoint, the others to any length.
        let expected = if windows { Rollback::Earlier(70) } else { Rollback::Done };
        assert_eq!(state.rollback(75), expected, "{name}");
        if !windows {
            assert_eq!(state.rollback(70), Rollback::Done, "{name}");
        }
        assert_eq!(state.offset(), 70, "{name}");
        for token in [9, 30, 31] {
            let expected = pass(model.as_ref(), &mut straight, &[token]);
            assert_eq!(pass(model.as_ref(), &mut state, &[token]), expected, "{name}");
        }
        prefill(model.as_ref(), &mut state, &tokens);
        assert_eq!(state.rollback(3) == Rollback::StartOver, windows, "{name}");
    }
}

/// A chunked prefill and the decode steps after it continue each other's states, whatever the neighboring rows are.
#[test]
fn rows_of_other_sequences_never_reach_a_recurrent_state() {
    let _turn = device();
    for name in [
        "lfm2-f32",
        "qwen3_5-f32",
        "granitemoehybrid-f32",
        "falcon_h1-f32",
        "mamba2-f32",
        "nemotron_h-f32",
        "kimi_linear-f32",
    ] {
        let model = load(name);
        let (tokens, other) = (text(120), text(97));
        let alone = |cuts: &[usize]| {
            let mut state = model.new_state(Variant::default());
            let mut last = Vec::new();
            for pair in cuts.windows(2) {
                last = pass(model.as_ref(), &mut state, &tokens[pair[0]..pair[1]]);
            }
            last
        };
        let (mut one, mut two) = (model.new_state(Variant::default()), model.new_state(Variant::default()));
        pass(model.as_ref(), &mut one, &tokens[..119]);
        pass(model.as_ref(), &mut two, &other);
        let rows = [(other[5], other.len()), (tokens[119], 119)];
        let batch = Batch::decode(&rows).per_span().padded(8).expect("padding");
        let hidden = model.forward(batch, &mut [&mut two, &mut one]).expect("the pass runs");
        let logits = Rows::new(&model.logits(&hidden).expect("the head runs")).expect("rows");
        let width = logits.width();
        let row: Vec<f32> = logits.values().expect("values")[width..2 * width].to_vec();
        let expected: Vec<f32> = alone(&[0, 119, 120]).iter().map(|bits| f32::from_bits(*bits)).collect();
        let spread = expected.iter().fold(0.0, |most: f32, it| most.max(it.abs()));
        let worst = row.iter().zip(&expected).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4 * spread, "{name}: {worst}");
    }
}
