//! The state sizes that `mlx inspect` and the scheduler compute are the actual sizes.

use std::fs;

use mlx_core::cache::{SequenceState, Variant, layer_capacity};
use mlx_core::engine::EngineOptions;
use mlx_core::inspect::{Inspection, inspect};
use mlx_core::model::{self, Batch, Model};
use mlx_core::weights::{FloatPolicy, WeightPolicy};
use mlx_tests::golden::{FAMILIES, MODELS, QUANTIZED};
use mlx_tests::{device, model_folder};
use serde_json::json;

fn load(name: &str) -> Box<dyn Model> {
    let policy = WeightPolicy::for_device(false).expect("a device");
    model::load(&model_folder(name), policy, &mut |_, _| {}).expect("the fixture loads")
}

/// Extends a state to `length` positions in passes of `run`, and evaluates it.
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

/// Covers every kind of layer in every family: heads of several shapes, latents, borrowed keys, windows, states of constant size.
#[test]
fn every_family_takes_the_bytes_that_inspect_reports() {
    let _turn = device();
    for name in FAMILIES.into_iter().chain(MODELS).chain(QUANTIZED) {
        let found = inspect(&model_folder(name), &EngineOptions::default()).expect("it can be read").spec;
        let model = load(name);
        assert_eq!(found.footprint, model.spec().footprint, "{name}");
        let footprint = found.footprint;
        // In one long pass, windows also store every row.
        let has_windows = footprint.checkpoint() > footprint.fixed;
        for length in if has_windows { vec![240] } else { vec![1, 5, 240] } {
            let mut state = model.new_state(model.spec().variant(length));
            extend(model.as_ref(), &mut state, length, length);
            let places = layer_capacity(None, length, length) as u64;
            let expected = footprint.fixed + places * footprint.per_token;
            assert_eq!(state.bytes() as u64, expected, "{name} after {length} rows");
        }
        // Otherwise they store fewer rows, and never more than reserved.
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

/// Returns Qwen 3.5 with 27 B parameters in 4 bits: the published config, and a file with only the header written.
fn hybrid_of_27b() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = json!({
        "model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 17_408, "num_attention_heads": 24,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248_320, "max_position_embeddings": 262_144, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false, "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    });
    fs::write(folder.path().join("config.json"), config.to_string()).expect("it can be written");
    let bytes = 15_200_000_000_u64;
    let header =
        json!({"model.norm.weight": {"dtype": "BF16", "shape": [bytes / 2], "data_offsets": [0, bytes]}})
            .to_string();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat())
        .expect("it can be written");
    let file = fs::OpenOptions::new().write(true).open(&path).expect("it is there");
    // The file is sparse and takes no disk space.
    file.set_len(8 + header.len() as u64 + bytes).expect("files may have holes");
    folder
}

/// These numbers are from decision 0028.
#[test]
fn a_27b_hybrid_keeps_checkpoints_within_a_quarter_of_what_is_left_of_32_gigabytes() {
    let _turn = device();
    let folder = hybrid_of_27b();
    let options = EngineOptions {
        memory_budget: Some(32 << 30),
        dtype: Some(FloatPolicy::Bf16),
        ..EngineOptions::default()
    };
    let Inspection { spec, memory_fit: room, .. } = inspect(folder.path(), &options).expect("it can be read");
    let footprint = spec.footprint;
    // 48 layers: for each of 48 heads a 128 by 128 memory in f32, and three rows of 10240 in bf16.
    assert_eq!(footprint.fixed, 48 * (48 * 128 * 128 * 4 + 3 * 10_240 * 2));
    assert_eq!(footprint.checkpoint(), footprint.fixed);
    // 16 layers: keys and values of 4 heads of 256 in bf16.
    assert_eq!(footprint.per_token, 16 * 2 * 4 * 256 * 2);
    assert_eq!(footprint.fixed / footprint.per_token, 2349);
    let kept = room.shared / 4;
    // A text of 32 Ki tokens has the newest two checkpoints and one per 4096 tokens.
    let text = footprint.per_token * 32_768 + 10 * footprint.checkpoint();
    assert!(text < kept, "{text} of {kept} bytes");
}
