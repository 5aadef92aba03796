//! What `mlx inspect` and the scheduler reckon is what the states of sequences take.

use mlx_core::cache::{SequenceState, Variant, layer_capacity};
use mlx_core::engine::EngineOptions;
use mlx_core::inspect::inspect;
use mlx_core::model::{self, Batch, Model};
use mlx_core::weights::WeightPolicy;
use mlx_tests::golden::{FAMILIES, MODELS, QUANTIZED};
use mlx_tests::{device, model_folder};

fn load(name: &str) -> Box<dyn Model> {
    let policy = WeightPolicy::for_device(false).expect("a device");
    model::load(&model_folder(name), policy, &mut |_, _| {}).expect("the fixture loads")
}

/// Brings a state to `length` positions in passes of `run`, and computes it.
fn extend(model: &dyn Model, state: &mut SequenceState, length: usize, run: usize) {
    while state.offset() < length {
        let start = state.offset();
        let tokens: Vec<u32> =
            (start..length.min(start + run)).map(|index| (index * 7 % 80 + 5) as u32).collect();
        let batch = match tokens.as_slice() {
            [token] => Batch::decode(&[(*token, start)]),
            tokens => Batch::prompt(tokens, start),
        };
        model.forward(batch, &mut [state]).expect("the pass runs");
        state.eval().expect("it is computed");
    }
}

/// Every kind of layer in every family: heads of several shapes, latents, borrowed keys, windows, states of constant size.
#[test]
fn every_family_takes_the_bytes_that_inspect_reports() {
    let _turn = device();
    for name in FAMILIES.into_iter().chain(MODELS).chain(QUANTIZED) {
        let found = inspect(&model_folder(name), &EngineOptions::default()).expect("it can be read").spec;
        let model = load(name);
        assert_eq!(found.footprint, model.spec().footprint, "{name}");
        let footprint = found.footprint;
        // In one long pass windows keep every row, too.
        let has_windows = footprint.checkpoint() > footprint.fixed;
        for length in if has_windows { vec![240] } else { vec![1, 5, 240] } {
            let mut state = model.new_state(model.spec().variant(length));
            extend(model.as_ref(), &mut state, length, length);
            let places = layer_capacity(None, length, length) as u64;
            let expected = footprint.fixed + places * footprint.per_token;
            assert_eq!(state.bytes() as u64, expected, "{name} after {length} rows");
        }
        // Otherwise they keep less than that, and never more than was reserved.
        let mut state = model.new_state(Variant::default());
        for length in [40, 100, 101, 160, 240] {
            extend(model.as_ref(), &mut state, length, 40);
            let bytes = state.bytes() as u64;
            assert!(bytes <= footprint.state(length, 40), "{name} at {length}: {bytes}");
            assert!(bytes > footprint.fixed || footprint.per_token == 0, "{name} at {length}: {bytes}");
        }
    }
}

#[test]
fn a_recurrent_state_takes_the_same_at_any_length_and_so_does_its_checkpoint() {
    let _turn = device();
    for name in [
        "lfm2-f32",
        "lfm2_moe-f32",
        "qwen3_5-f32",
        "qwen3_5_moe-f32",
        "qwen3_next-f32",
        "falcon_h1-f32",
        "mamba2-f32",
        "nemotron_h-f32",
        "kimi_linear-f32",
    ] {
        let model = load(name);
        let footprint = model.spec().footprint;
        assert!(footprint.fixed > 0, "{name}");
        for length in [1, 63, 150, 240] {
            let mut state = model.new_state(Variant::default());
            extend(model.as_ref(), &mut state, length, 16);
            let positions = layer_capacity(None, length, 1) as u64;
            let expected = footprint.fixed + positions * footprint.per_token;
            assert_eq!(state.bytes() as u64, expected, "{name}, {length}");
            state.checkpoint(false).expect("a handle");
            assert_eq!(state.checkpoint_bytes() as u64, footprint.checkpoint(), "{name}, {length}");
            assert_eq!(footprint.checkpoint(), footprint.fixed, "{name}");
        }
    }
}
