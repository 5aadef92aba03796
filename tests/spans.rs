//! Spans: a pass may mix prefill, decode and verification, and each span gives the result of a separate pass.

use mlx_core::array::{Rows, from_tokens};
use mlx_core::backend::Backend;
use mlx_core::cache::{Rollback, SequenceState};
use mlx_core::model::{self, Batch, Input, LogitRows, Model, Span};
use mlx_core::weights::WeightPolicy;
use mlx_tests::golden::worst_difference;
use mlx_tests::{Dice, cpu, device, model_folder};

fn load(name: &str, backend: Backend) -> Box<dyn Model> {
    let policy = WeightPolicy::new(backend, false);
    model::load(&model_folder(name), policy, &mut |_, _| {}).expect("the fixture loads")
}

fn text(dice: &mut Dice, length: usize) -> Vec<u32> {
    (0..length).map(|_| dice.below(300) as u32 + 8).collect()
}

/// Returns the state of a sequence of `tokens` that will have `length` tokens.
fn state(model: &dyn Model, tokens: &[u32], length: usize) -> SequenceState {
    let mut state = model.new_state(model.spec().variant(length));
    for chunk in tokens.chunks(32) {
        let start = state.offset();
        model.forward(Batch::prompt(chunk, start), &mut [&mut state]).expect("the pass runs");
        state.eval().expect("it is computed");
    }
    state
}

/// Returns the logits that the spans of a pass request.
fn logits(model: &dyn Model, batch: Batch, states: &mut [&mut SequenceState]) -> Vec<f32> {
    let mut pass = model.begin(batch).expect("the pass begins");
    model.advance(&mut pass, usize::MAX, states).expect("the layers run");
    let hidden = pass.logit_hidden().expect("rows");
    let rows = Rows::new(&model.logits(&hidden).expect("the head runs")).expect("rows");
    rows.values().expect("they are computed").to_vec()
}

fn batch(tokens: &[Vec<u32>], spans: &[Span]) -> Batch {
    Batch::new(Input::Tokens(from_tokens(&tokens.concat())), spans.to_vec())
}

/// Models with sliding windows, sinks, soft caps, experts, LongRoPE with both variants in a pass, and temperature-scaled queries.
const NAMES: [&str; 8] = [
    "llama-rope3-f32",
    "mistral-f32",
    "gemma2-f32",
    "gemma3_text-f32",
    "gpt_oss-f32",
    "phi3-long-f32",
    "qwen3_moe-f32",
    "ministral3-f32",
];

#[test]
fn any_mix_of_spans_equals_the_same_spans_alone() {
    let _turn = device();
    // Positions before the span, and its length: prefill, verification, decode, in any order.
    let shapes = [(0, 20), (5, 4), (33, 1), (70, 9), (12, 1), (0, 1)];
    for name in NAMES {
        for fused in [false, true] {
            let backend = Backend { fused_attention: fused, fused_rope: fused, ..Backend::CPU };
            let (model, mut dice) = (load(name, backend), Dice::new(11));
            let width = model.spec().vocab_size;
            let before: Vec<Vec<u32>> = shapes.iter().map(|shape| text(&mut dice, shape.0)).collect();
            let tokens: Vec<Vec<u32>> = shapes.iter().map(|shape| text(&mut dice, shape.1)).collect();
            let start = |index: usize| {
                let (length, added) = shapes[index];
                state(model.as_ref(), &before[index], length + added)
            };
            let span = |index: usize, state: usize, logits: LogitRows| Span {
                state,
                start: shapes[index].0,
                len: shapes[index].1,
                logits,
            };
            let every = [LogitRows::All; 6];
            let some = [LogitRows::Last, LogitRows::All, LogitRows::All, LogitRows::None, LogitRows::Last];
            for (wanted, padding) in [(&every[..], 0), (&some[..], 0), (&some[..], 5)] {
                let count = wanted.len();
                let mut states: Vec<SequenceState> = (0..count).map(start).collect();
                let spans: Vec<Span> = (0..count).map(|index| span(index, index, wanted[index])).collect();
                let together = batch(&tokens[..count], &spans);
                let rows: usize = spans.iter().map(|span| span.len).sum();
                let together = together.padded(rows + padding).expect("padding");
                let together = logits(model.as_ref(), together, &mut states.iter_mut().collect::<Vec<_>>());
                let mut alone = Vec::new();
                for (index, &wanted) in wanted.iter().enumerate().filter(|it| *it.1 != LogitRows::None) {
                    let single = batch(&tokens[index..=index], &[span(index, 0, wanted)]);
                    alone.extend(logits(model.as_ref(), single, &mut [&mut start(index)]));
                }
                let worst = worst_difference(&together, &alone, width);
                assert!(worst < 1e-4, "{name}, fused: {fused}: {worst:e} of the spread");
                for (state, shape) in states.iter().zip(shapes) {
                    assert_eq!(state.offset(), shape.0 + shape.1, "{name}");
                }
            }
        }
    }
}

/// Replays require this: adjacent rows of one sequence equal the rows of separate steps.
#[test]
fn rows_of_one_state_have_the_bits_of_their_steps() {
    let _turn = cpu();
    for name in NAMES {
        let (model, mut dice) = (load(name, Backend::CPU), Dice::new(3));
        for length in [3, 20, 61] {
            let (before, tokens) = (text(&mut dice, length), text(&mut dice, 5));
            let mut stepped = state(model.as_ref(), &before, length + 5);
            let mut steps = Vec::new();
            for (place, &token) in tokens.iter().enumerate() {
                let step = Batch::decode(&[(token, length + place)]).per_span().padded(8).expect("padding");
                let row = logits(model.as_ref(), step, &mut [&mut stepped]);
                steps.extend_from_slice(&row[..model.spec().vocab_size]);
            }
            let spans: Vec<Span> = (length..length + 5).map(|position| Span::row(0, position)).collect();
            let replay = batch(&[tokens], &spans).per_span().padded(8).expect("padding");
            let rows = logits(model.as_ref(), replay, &mut [&mut state(model.as_ref(), &before, length + 5)]);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert!(bits(&rows[..steps.len()]) == bits(&steps), "{name} at {length}");
        }
    }
}

/// A rejected draft costs no more than its rows, also if a window moves during verification.
#[test]
fn a_state_goes_back_to_where_its_last_pass_began() {
    let _turn = device();
    let (model, mut dice) = (load("mistral-f32", Backend::CPU), Dice::new(8));
    let tokens = text(&mut dice, 150);
    for split in [false, true] {
        let mut state = state(model.as_ref(), &tokens[..10], 200);
        while state.offset() + 4 <= tokens.len() {
            let start = state.offset();
            let draft = vec![text(&mut dice, 4)];
            let spans = if split {
                (start..start + 4).map(|position| Span::row(0, position)).collect()
            } else {
                vec![Span { state: 0, start, len: 4, logits: LogitRows::All }]
            };
            logits(model.as_ref(), batch(&draft, &spans), &mut [&mut state]);
            assert_eq!(state.rollback(start), Rollback::Done, "from {start}");
            let row = Batch::decode(&[(tokens[start], start)]);
            logits(model.as_ref(), row, &mut [&mut state]);
        }
    }
}

#[test]
fn embeddings_stand_in_for_tokens() {
    let _turn = device();
    let model = load("gemma3_text-f32", Backend::CPU);
    let tokens = text(&mut Dice::new(2), 12);
    let new = || model.new_state(model.spec().variant(12));
    let expected = logits(model.as_ref(), Batch::prompt(&tokens, 0), &mut [&mut new()]);
    let pass = model.begin(Batch::prompt(&tokens, 0)).expect("the pass begins");
    let span = Span { state: 0, start: 0, len: 12, logits: LogitRows::Last };
    let batch = Batch::new(Input::Embeddings(pass.hidden().clone()), vec![span]);
    assert_eq!(logits(model.as_ref(), batch, &mut [&mut new()]), expected);
}

/// Gemma 4's layers also read the tokens; without them the logits would be silently wrong.
#[test]
fn embeddings_are_refused_where_layers_read_tokens() {
    let _turn = device();
    let model = load("gemma4_text-f32", Backend::CPU);
    let pass = model.begin(Batch::prompt(&[9, 10], 0)).expect("tokens are fine");
    let span = Span { state: 0, start: 0, len: 2, logits: LogitRows::Last };
    let refused = model.begin(Batch::new(Input::Embeddings(pass.hidden().clone()), vec![span]));
    let message = refused.err().expect("it is refused").to_string();
    assert!(message.starts_with("embeddings: ") && message.contains("gemma4_text"), "{message}");
}

/// Families with every kind of layer state.
const KINDS: [&str; 17] = [
    "llama-rope3-f32",
    "gemma2-f32",
    "gemma3_text-f32",
    "gemma4_text-f32",
    "gpt_oss-f32",
    "mistral-f32",
    "qwen3_moe-f32",
    "qwen3_5-f32",
    "qwen3_next-f32",
    "lfm2-f32",
    "nemotron_h-f32",
    "mamba2-f32",
    "falcon_h1-f32",
    "kimi_linear-f32",
    "granitemoehybrid-f32",
    "deepseek_v3-f32",
    "glm4_moe_lite-q4-f32",
];

/// Sequences that join, leave, roll back, verify drafts and outgrow their buffers get the same logits as one by one.
#[test]
fn rows_that_attend_at_once_equal_rows_that_attend_one_by_one() {
    let _turn = device();
    for name in KINDS {
        for fused in [false, true] {
            let backend = Backend { fused_attention: fused, fused_rope: fused, ..Backend::CPU };
            let model = load(name, Backend { batched_decode: true, ..backend });
            let mut dice = Dice::new(17);
            let lengths = [254, 3, 40, 41, 255, 10];
            let width = model.spec().vocab_size;
            let start = |length: usize| state(model.as_ref(), &text(&mut Dice::new(9), length), 300);
            let mut ours: Vec<SequenceState> = lengths.into_iter().map(start).collect();
            let mut theirs: Vec<SequenceState> = lengths.into_iter().map(start).collect();
            for step in 0..12 {
                // Most sequences, in rising order; some roll back, or continue in a copy.
                let going: Vec<usize> = (0..6).filter(|_| dice.below(4) > 0 || step < 3).collect();
                let back = dice.below(6);
                let length = ours[back].offset() - dice.below(2);
                let copied = dice.below(6);
                for states in [&mut ours, &mut theirs] {
                    if states[back].nearest(length) == length {
                        assert_eq!(states[back].rollback(length), Rollback::Done);
                    }
                    let copy = states[copied].fork(states[copied].offset()).expect("it is copied");
                    states[copied] = copy.expect("a state reaches its own length");
                    assert!(!states[copied].is_pooled());
                }
                if going.is_empty() {
                    continue;
                }
                // Some have a draft: one span for all its rows, or a span per row.
                let (mut tokens, mut spans) = (Vec::new(), Vec::new());
                for (state, &index) in going.iter().enumerate() {
                    let (count, start) = (1 + dice.below(3) * dice.below(2), ours[index].offset());
                    let len = [1, count][usize::from(dice.below(2) > 0 && !ours[index].is_recurrent())];
                    let of_span = |row| Span { state, start: start + row, len, logits: LogitRows::All };
                    spans.extend((0..count).step_by(len).map(of_span));
                    tokens.extend((0..count).map(|_| dice.below(60) as u32 + 8));
                }
                let batch = || Batch::new(Input::Tokens(from_tokens(&tokens)), spans.clone());
                let of = |states: &mut [SequenceState], batch: Batch| {
                    let chosen = states.iter_mut().enumerate().filter(|it| going.contains(&it.0));
                    logits(model.as_ref(), batch, &mut chosen.map(|it| it.1).collect::<Vec<_>>())
                };
                let together = of(&mut ours, batch());
                let alone = of(&mut theirs, batch().per_span());
                assert!(going.len() < 2 || ours.iter().any(SequenceState::is_pooled), "{name}");
                assert!(!theirs.iter().any(SequenceState::is_pooled), "{name}");
                let worst = worst_difference(&together, &alone, width);
                assert!(worst < 1e-4, "{name}, fused: {fused}, step {step}: {worst:e} of the spread");
            }
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert!(ours.bytes() <= theirs.bytes(), "{name}: a slot takes what a buffer takes");
            }
        }
    }
}
