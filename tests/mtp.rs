//! Multi-token prediction heads: their logits, and that they draft.

use mlx_core::array::Rows;
use mlx_core::backend::Backend;
use mlx_core::cache::Variant;
use mlx_core::engine::{EngineOptions, FinishReason, RequestOptions, Speculate};
use mlx_core::model::{self, Batch, Input, LogitRows, Span};
use mlx_core::weights::WeightPolicy;
use mlx_core::{array, inspect::inspect};
use mlx_rs::Array;
use mlx_tests::golden::{self, worst_difference};
use mlx_tests::{device, greedy, model_copy, model_folder, run, tensors};

use super::exactness::start;
use super::families::tolerance;

/// Both layouts: Qwen's and DeepSeek's.
const HEADS: [&str; 2] = ["qwen3_5-mtp-f32", "glm4_moe_lite-mtp-f32"];

fn span(start: usize, len: usize) -> Vec<Span> {
    vec![Span { state: 0, start, len, logits: LogitRows::All }]
}

fn values(logits: &Array) -> Vec<f32> {
    Rows::new(logits).and_then(|rows| Ok(rows.values()?.to_vec())).expect("rows")
}

#[test]
fn the_logits_of_a_head_equal_the_reference() {
    let _turn = device();
    let policy = WeightPolicy::new(Backend::detect().expect("a device"), false);
    for name in HEADS {
        let loaded = model::load_adapted(&model_folder(name), &[], true, policy, &mut |_, _| {});
        let loaded = loaded.expect("the fixture loads");
        let (whole, head) = (&loaded.models[0], loaded.mtp.expect("it has a head").expect("it loads"));
        let expected = golden::logits(name, true);
        let tokens = &expected.tokens;
        let mut state = whole.new_state(Variant::default());
        let hidden = whole.forward(Batch::prompt(tokens, 0), &mut [&mut state]).expect("it runs");
        let hidden = whole.normalized(&hidden).expect("it has a norm");
        for cuts in [vec![0, 39], vec![0, 7, 8, 20, 39]] {
            let (mut state, mut logits) = (head.new_state(Variant::default()), Vec::new());
            for range in cuts.windows(2).map(|ends| ends[0]..ends[1]) {
                let rows: Vec<i32> = range.clone().map(|row| row as i32).collect();
                let before =
                    hidden.take_axis(Array::from_slice(&rows, &[rows.len() as i32]), 0).expect("rows");
                let behind = array::from_tokens(&tokens[range.start + 1..=range.end]);
                let input = Input::Mtp { tokens: behind, hidden: before };
                let batch = Batch::new(input, span(range.start, range.len()));
                let rows = head.forward(batch, &mut [&mut state]).expect("it runs");
                logits.extend(values(&head.logits(&rows).expect("it has the head of the model")));
            }
            let worst = worst_difference(&logits, &expected.values, expected.vocabulary);
            assert!(worst < tolerance("f32"), "{name} {cuts:?}: {worst:e} of the spread");
        }
    }
}

#[test]
fn a_head_drafts_and_changes_no_token() {
    let _turn = device();
    let prompt: Vec<u32> = (10..60).collect();
    for name in HEADS {
        let folder = model_folder(name);
        let plain = EngineOptions { speculate: Speculate::Off, ..EngineOptions::single() };
        let expected = run(&start(&folder, &plain), &prompt, &greedy(60));
        let drafting = EngineOptions { speculate: Speculate::Mtp, force_drafts: true, ..plain };
        let engine = start(&folder, &drafting);
        assert_eq!(run(&engine, &prompt, &greedy(60)).ids(), expected.ids(), "{name}");
        assert!(engine.stats().drafted_tokens > 0, "{name}: nothing was drafted");
    }
}

/// The end of a text is found while the next step runs. The head would have read the hidden states of that step.
#[test]
fn a_stop_string_ends_a_text_whose_head_is_to_read_the_step_behind_it() {
    let _turn = device();
    let prompt: Vec<u32> = (10..60).collect();
    let backend = Backend { pipelined: true, ..Backend::detect().expect("a device") };
    for name in HEADS {
        let folder = model_folder(name);
        let plain = EngineOptions { backend: Some(backend), ..EngineOptions::single() };
        let tokens = run(&start(&folder, &plain), &prompt, &greedy(20)).tokens;
        let options = EngineOptions { speculate: Speculate::Mtp, force_drafts: true, ..plain };
        let engine = start(&folder, &options);
        for stop in tokens[3..12].iter().map(|token| token.text.clone()).filter(|text| !text.is_empty()) {
            let request = RequestOptions { stop: vec![stop.clone()], ..greedy(20) };
            let outcome = run(&engine, &prompt, &request);
            assert!(matches!(outcome.finished.reason, FinishReason::StopString(_)), "{name} {stop:?}");
        }
    }
}

/// Uses a head that only looks at the token. The model's next token is its successor, and so is the head's.
#[test]
fn a_head_that_is_right_saves_passes() {
    let _turn = device();
    let copy = model_copy("qwen3_5-mtp-f32");
    let file = copy.path().join("model.safetensors");
    let mut weights = tensors::read(&file);
    for (name, (_, shape, bytes)) in &mut weights {
        let adds_nothing = ["o_proj.weight", "out_proj.weight", "down_proj.weight"];
        let is_plain = name.contains("norm") && !name.contains("linear_attn") && !name.contains("visual");
        if adds_nothing.iter().any(|part| name.ends_with(part)) || is_plain {
            bytes.fill(0);
        }
        if name == "mtp.fc.weight" {
            let numbers =
                (0..shape[0] * shape[1]).map(|at| f32::from(u8::from(at / shape[1] == at % shape[1])));
            *bytes = numbers.flat_map(f32::to_le_bytes).collect();
        }
    }
    tensors::write(&file, &weights);
    let prompt: Vec<u32> = (10..60).collect();
    let plain = EngineOptions { speculate: Speculate::Off, ..EngineOptions::single() };
    let expected = run(&start(copy.path(), &plain), &prompt, &greedy(60));
    let engine =
        start(copy.path(), &EngineOptions { speculate: Speculate::Mtp, force_drafts: true, ..plain });
    let outcome = run(&engine, &prompt, &greedy(60));
    assert_eq!(outcome.ids(), expected.ids());
    let drafts = outcome.finished.usage.drafts;
    assert!(drafts.accepted > 40 && drafts.accepted == drafts.drafted, "{drafts:?}");
}

#[test]
fn heads_are_counted_and_refused_by_name() {
    let _turn = device();
    let folder = model_folder("qwen3_5-mtp-f32");
    let room = |speculate| {
        let options = EngineOptions { speculate, memory_budget: Some(64 << 20), ..EngineOptions::single() };
        inspect(&folder, &options).expect("it is sound").memory_fit.shared
    };
    assert!(room(Speculate::Mtp) < room(Speculate::Off));
    let refused = |name: &str, options: &EngineOptions| {
        let engine = mlx_core::engine::Engine::start(&model_folder(name), options, |_, _| {});
        engine.map(drop).expect_err("it is refused").to_string()
    };
    let asked = EngineOptions { speculate: Speculate::Mtp, ..EngineOptions::single() };
    assert!(refused("llama-f32", &asked).contains("speculate: is mtp"), "{}", refused("llama-f32", &asked));
    // Tensors that only look like a head are an error if the head was requested, and ignored otherwise.
    assert!(refused("qwen3_5-f32", &asked).contains("mtp"), "{}", refused("qwen3_5-f32", &asked));
    start(&model_folder("qwen3_5-f32"), &EngineOptions::single());
    let both = EngineOptions { draft_model: Some(folder.clone()), ..asked };
    let answer = refused("qwen3_5-mtp-f32", &both);
    assert!(answer.contains("draft_model: names a model"), "{answer}");
}
