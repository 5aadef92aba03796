//! Fidelity: logits and tokens equal the reference's for every family and weight type.

use std::path::Path;

use mlx_core::array::Rows;
use mlx_core::backend::{self, Backend};
use mlx_core::cache::{Rollback, SequenceState, Variant};
use mlx_core::engine::{Engine, EngineOptions};
use mlx_core::model::{self, Batch, Model};
use mlx_core::weights::WeightPolicy;
use mlx_tests::golden::{self, FAMILIES, MODELS, QUANTIZED, worst_difference};
use mlx_tests::{collect, device, engine, greedy, model_folder, run};

/// Returns the tolerance of logits, relative to the standard deviation of the row.
pub(crate) fn tolerance(dtype: &str) -> f32 {
    match (dtype, backend::device_name().expect("a device")) {
        ("f32", "cpu") => 1e-4,
        // A GPU sums in another order, and some GPUs multiply f32 at a lower precision.
        ("f32", _) => 2e-3,
        ("f16", _) => 1e-2,
        _ => 5e-2,
    }
}

fn load(folder: &Path) -> Box<dyn Model> {
    load_on(Backend::detect().expect("a device"), folder)
}

fn load_on(backend: Backend, folder: &Path) -> Box<dyn Model> {
    let policy = WeightPolicy::new(backend, false);
    model::load(folder, policy, &mut |_, _| {}).expect("the fixture loads")
}

/// Returns the logits of every row of a pass.
pub(crate) fn logits(model: &dyn Model, batch: Batch, caches: &mut [&mut SequenceState]) -> Vec<f32> {
    let hidden = model.forward(batch, caches).expect("the pass runs");
    let rows = Rows::new(&model.logits(&hidden).expect("the head runs")).expect("rows");
    rows.values().expect("values").to_vec()
}

/// Returns the logits of every position of a text that is split into passes at `cuts`; a pass of one token is a decode step.
pub(crate) fn logits_in_passes(model: &dyn Model, tokens: &[u32], cuts: &[usize]) -> Vec<f32> {
    let mut cache = model.new_state(model.spec().variant(tokens.len()));
    let (mut values, mut start) = (Vec::new(), 0);
    for &end in cuts.iter().chain([&tokens.len()]) {
        let batch = match &tokens[start..end] {
            [token] => Batch::decode(&[(*token, start)]),
            tokens => Batch::prompt(tokens, start),
        };
        values.extend(logits(model, batch, &mut [&mut cache]));
        start = end;
        assert_eq!(cache.offset(), end);
    }
    values
}

#[test]
fn logits_equal_the_reference_in_one_pass_in_chunks_and_one_by_one() {
    let _turn = device();
    for name in MODELS.into_iter().chain(FAMILIES).chain(QUANTIZED) {
        let model = load(&model_folder(name));
        let dtype = model.spec().dtype;
        let expected = golden::logits(name, dtype == "f32");
        let one_by_one: Vec<usize> = (1..expected.tokens.len()).collect();
        for (way, cuts) in [("one pass", &[][..]), ("chunks", &[7, 8, 31, 40]), ("one by one", &one_by_one)] {
            let values = logits_in_passes(model.as_ref(), &expected.tokens, cuts);
            let worst = worst_difference(&values, &expected.values, expected.vocabulary);
            assert!(worst < tolerance(dtype), "{name}, {way}: {worst:e} of the spread");
        }
    }
}

/// Fused operations of a Mac and the composed ones of a CPU give the same numbers: with sliding windows, sinks, experts, LongRoPE, soft
/// caps, norms of queries and keys, borrowed keys and values, and rope that rotates adjacent pairs or part of a head.
#[test]
fn fused_and_written_out_operations_give_the_references_logits() {
    let _turn = device();
    let names = [
        "llama-rope3-f32",
        "mistral-f32",
        "gemma2-f32",
        "gemma3_text-f32",
        "gpt_oss-f32",
        "phi3-long-f32",
        "qwen3_moe-f32",
        "cohere2-f32",
        "stablelm-f32",
        "ministral3-f32",
        "glm4-f32",
        "lfm2-f32",
        "qwen3_5-f32",
        "falcon_h1-f32",
        "nemotron_h-f32",
        "gemma4-f32",
        "gemma4_text-f32",
    ];
    for name in names {
        let expected = golden::logits(name, true);
        let one_by_one: Vec<usize> = (1..expected.tokens.len()).collect();
        // Attention of single rows, attention of all rows, rope.
        let fused = [(false, false, false), (true, false, true), (false, true, false), (true, true, true)];
        for (fused_row_attention, fused_attention, fused_rope) in fused {
            // An NVIDIA GPU computes narrow ropes with separate operations and fuses the others.
            let fused_narrow_rope = fused_attention;
            let backend = Backend {
                fused_row_attention,
                fused_attention,
                fused_rope,
                fused_narrow_rope,
                ..Backend::CPU
            };
            let model = load_on(backend, &model_folder(name));
            for cuts in [&[][..], &[7, 8, 31, 40], &one_by_one] {
                let values = logits_in_passes(model.as_ref(), &expected.tokens, cuts);
                let worst = worst_difference(&values, &expected.values, expected.vocabulary);
                assert!(worst < tolerance("f32"), "{name}, {backend:?}: {worst:e} of the spread");
            }
        }
    }
}

/// Runs the whole engine as on a Mac, and with packed stacks as on an NVIDIA GPU.
#[test]
fn greedy_tokens_are_the_references_with_fused_operations_in_a_pipeline() {
    let _turn = device();
    for name in [
        "llama-rope3-f32",
        "gemma3_text-f32",
        "gemma4_text-f32",
        "gpt_oss-f32",
        "qwen3_5-f32",
        "falcon_h1-f32",
        "glm4_moe_lite-q4-f32",
    ] {
        for (pipelined, batched_decode) in [(false, false), (true, false), (false, true), (true, true)] {
            let backend = Backend {
                pipelined,
                batched_decode,
                keep_float_type: false,
                broadcast_stacks: pipelined,
                ..Backend::GPU
            };
            let options = EngineOptions { backend: Some(backend), ..EngineOptions::default() };
            let engine = Engine::start(&model_folder(name), &options, |_, _| {}).expect("it loads");
            let cases = golden::cases(name).cases;
            let request = |case: &golden::Case| {
                engine.request(case.prompt_ids.clone(), &greedy(case.tokens.len())).expect("valid")
            };
            let together = engine.submit_all(cases.iter().map(request).collect()).expect("room");
            for (generation, case) in together.into_iter().zip(&cases) {
                assert_eq!(collect(generation).ids(), case.tokens, "{name}, {backend:?}");
            }
        }
    }
}

#[test]
fn greedy_tokens_and_their_logprobs_equal_the_reference() {
    let _turn = device();
    for name in MODELS.into_iter().chain(FAMILIES).chain(QUANTIZED) {
        let engine = engine(name);
        if engine.spec().dtype != "f32" {
            continue; // The tokens were recorded in f32; a GPU keeps half precision.
        }
        for case in golden::cases(name).cases {
            let mut options = greedy(case.tokens.len());
            options.logprobs = Some(5);
            let outcome = run(&engine, &case.prompt_ids, &options);
            assert_eq!(outcome.ids(), case.tokens, "{name}");
            for ((token, logprob), top) in outcome.tokens.iter().zip(&case.logprobs).zip(&case.top) {
                let reported = token.logprob.as_ref().expect("asked for");
                assert!((reported.logprob - logprob).abs() < 1e-3, "{name}");
                assert_eq!(reported.top.len(), top.len(), "{name}");
                for (ours, theirs) in reported.top.iter().zip(top) {
                    // Only tokens with equal logits may swap.
                    assert!(ours.0 == theirs.0 || (ours.1 - theirs.1).abs() < 1e-4, "{name}");
                    assert!((ours.1 - theirs.1).abs() < 1e-3, "{name}");
                }
            }
        }
    }
}

/// The rows of one step share only the matrix products.
#[test]
fn rows_of_one_step_do_not_see_each_other() {
    let _turn = device();
    let model = load(&model_folder("llama-f32"));
    let texts: [&[u32]; 3] = [&[5, 6, 7], &[9], &[11, 12, 13, 14, 15, 16]];
    let prefill = |text: &[u32]| {
        let mut cache = model.new_state(Variant::default());
        model.forward(Batch::prompt(text, 0), &mut [&mut cache]).expect("the pass runs");
        cache
    };
    let rows: Vec<(u32, usize)> = texts.iter().map(|text| (20, text.len())).collect();
    let mut together = texts.map(prefill);
    let mut caches: Vec<_> = together.iter_mut().collect();
    let all = logits(model.as_ref(), Batch::decode(&rows).padded(5).expect("padding"), &mut caches);
    let width = model.spec().vocab_size;
    for ((text, row), of_batch) in texts.iter().zip(rows).zip(all.chunks(width)) {
        let alone = logits(model.as_ref(), Batch::decode(&[row]), &mut [&mut prefill(text)]);
        let worst = worst_difference(of_batch, &alone, width);
        assert!(worst < 1e-3, "{worst:e} of the spread");
    }
}

#[test]
fn a_truncated_cache_equals_one_that_was_never_longer() {
    let _turn = device();
    let model = load(&model_folder("llama-rope3-f32"));
    let tokens = golden::logits("llama-rope3-f32", true).tokens;
    let mut cache = model.new_state(Variant::default());
    let straight = logits_in_passes(model.as_ref(), &tokens, &[20]);
    model.forward(Batch::prompt(&tokens[..20], 0), &mut [&mut cache]).expect("the pass runs");
    model.forward(Batch::prompt(&[1, 2, 3, 4, 5], 20), &mut [&mut cache]).expect("the pass runs");
    assert_eq!(cache.rollback(20), Rollback::Done);
    let rest = logits(model.as_ref(), Batch::prompt(&tokens[20..], 20), &mut [&mut cache]);
    assert_eq!(rest, straight[20 * model.spec().vocab_size..]);
}
