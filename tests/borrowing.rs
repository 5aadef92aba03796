//! Layers that borrow keys and values from earlier ones (Gemma 4). They take no memory per sequence and attend to the same positions
//! as their source, quantized or not.

use mlx_core::cache::Variant;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions};
use mlx_core::model::{self, Batch};
use mlx_core::weights::WeightPolicy;
use mlx_tests::{Outcome, device, golden, greedy, model_folder, run};
use serde_json::json;

use crate::family_configs::{bits, rewritten};

const MODEL: &str = "gemma4_text-f32";

/// Bytes per token. Three layers have two heads of keys and values, two of them with 8 dimensions and one with 16, in f32; three layers borrow.
const BYTES_PER_TOKEN: u64 = 2 * 2 * (8 + 8 + 16) * 4;

#[test]
fn a_sequence_takes_the_bytes_of_layers_with_keys_of_their_own() {
    let _turn = device();
    let policy = WeightPolicy::for_device(false).expect("a device");
    let model = model::load(&model_folder(MODEL), policy, &mut |_, _| {}).expect("the fixture loads");
    let footprint = model.spec().footprint;
    assert_eq!(footprint.per_token, BYTES_PER_TOKEN);
    let mut state = model.new_state(Variant::default());
    for start in (0..200).step_by(40) {
        let tokens: Vec<u32> = (start..start + 40).map(|index| index * 7 % 80 + 5).collect();
        let hidden = model.forward(Batch::prompt(&tokens, start as usize), &mut [&mut state]);
        hidden
            .and_then(|hidden| model.logits(&hidden))
            .expect("the pass runs")
            .eval()
            .expect("it is computed");
        let length = start as usize + 40;
        assert_eq!(state.offset(), length);
        assert!(state.bytes() as u64 <= footprint.state(length, 40), "{length}: {}", state.bytes());
        // The global layer stores every position.
        assert!(state.bytes() as u64 >= BYTES_PER_TOKEN / 2 * length as u64, "{length}: {}", state.bytes());
    }
}

#[test]
fn quantized_keys_and_values_are_lent_as_their_own_layer_reads_them() {
    let _turn = device();
    let prompt = &golden::cases(MODEL).cases[0].prompt_ids;
    let scored = |kv_bits| -> Vec<f32> {
        let options = EngineOptions { kv_bits, ..EngineOptions::default() };
        let engine = Engine::start(&model_folder(MODEL), &options, |_, _| {}).expect("it loads");
        let options = RequestOptions { prompt_logprobs: Some(0), ..greedy(4) };
        let Outcome { prompt_tokens, .. } = run(&engine, prompt, &options);
        prompt_tokens.iter().filter_map(|token| Some(token.logprob.as_ref()?.logprob)).collect()
    };
    let (full, eight) = (scored(None), scored(Some(8)));
    assert_eq!((full.len(), eight.len()), (prompt.len() - 1, prompt.len() - 1));
    let difference = full.iter().zip(&eight).map(|(one, other)| (one - other).abs()).sum::<f32>();
    let mean = difference / full.len() as f32;
    assert!(mean > 0.0 && mean < 0.05, "{mean}");
}

/// Newer files list the borrowing layer by layer; mlx-lm's files omit the unused projections.
#[test]
fn other_layouts_of_the_same_checkpoint_give_the_same_model() {
    let _turn = device();
    let alone = bits(&model_folder(MODEL));
    let copy = rewritten(
        MODEL,
        |tensors| {
            let before = tensors.len();
            let own = |name: &str| ["layers.0.", "layers.1.", "layers.2."].iter().any(|it| name.contains(it));
            let lent = |name: &str| [".k_proj.", ".v_proj.", ".k_norm."].iter().any(|it| name.contains(it));
            tensors.retain(|name, _| own(name) || !lent(name));
            assert_eq!(tensors.len(), before - 9);
        },
        |config| {
            let config = config.as_object_mut().expect("an object");
            config.remove("global_head_dim").expect("it is there");
            config.insert("per_layer_config".into(), json!({"2": {"head_dim": 16}, "5": {"head_dim": 16}}));
        },
    );
    assert!(bits(copy.path()) == alone);
}
