//! The incremental state equals a rebuild from the whole history, byte for byte, after any pushes, truncations and forks.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::sampling::SamplingOptions;

const VOCABULARY: u32 = 12;

/// Each token is a letter. Some letters are breakers, alone or combined.
fn token_table() -> TokenTable {
    let text = |id: u32| vec![b'a' + (id % 26) as u8];
    TokenTable { text: Arc::new(text), protected: Arc::from([11]) }
}

fn resolve(options: &SamplingOptions) -> SamplingParams {
    let seeded = SamplingOptions { seed: options.seed.or(Some(5)), ..options.clone() };
    SamplingParams::resolve(&seeded, &SamplingOptions::default()).expect("valid options")
}

fn sampler(options: &SamplingOptions) -> Sampler {
    Sampler::new(resolve(options), None, &token_table())
}

/// The edits as docs/sampling.md defines them, computed from the whole history at once.
mod oracle {
    use crate::sampling::{SamplingParams, TokenHistory};

    fn window(history: &TokenHistory, last: i64) -> usize {
        if last < 0 { 0 } else { history.len().saturating_sub(last as usize) }
    }

    #[expect(clippy::float_cmp, reason = "off is exactly this value")]
    pub(super) fn edit(row: &mut [f32], history: &TokenHistory, params: &SamplingParams) {
        for &(id, bias) in &params.logit_bias {
            if (id as usize) < row.len() {
                row[id as usize] += bias;
            }
        }
        let penalties = params.penalties();
        let start = window(history, penalties.window);
        let in_window = |places: std::ops::Range<usize>, id: usize| {
            history.tokens()[places].iter().filter(|&&token| token as usize == id).count()
        };
        for (id, logit) in row.iter_mut().enumerate() {
            if in_window(start..history.len(), id) > 0 && penalties.repetition != 1.0 {
                *logit =
                    if *logit > 0.0 { *logit / penalties.repetition } else { *logit * penalties.repetition };
            }
            let generated = in_window(start.max(history.prompt_length())..history.len(), id);
            if generated > 0 {
                *logit -= penalties.frequency * generated as f32 + penalties.presence;
            }
        }
        if params.dry_multiplier > 0.0 && params.dry_penalty_last_n != 0 {
            dry(row, history, params);
        }
    }

    /// Computes `base^exponent` by squaring, from the lowest bit.
    fn power(base: f32, exponent: usize) -> f32 {
        let squares = std::iter::successors(Some(base), |square| Some(square * square));
        let bits = (0..usize::BITS).map(|bit| exponent >> bit & 1 == 1);
        let highest = (usize::BITS - exponent.leading_zeros()) as usize;
        bits.zip(squares)
            .take(highest)
            .filter(|(set, _)| *set)
            .fold(1.0, |product, (_, square)| product * square)
    }

    fn dry(row: &mut [f32], history: &TokenHistory, params: &SamplingParams) {
        let (tokens, settings) = (history.tokens(), params.dry());
        let start = window(history, settings.window);
        let Some(end) = tokens.len().checked_sub(1) else { return };
        let text: Vec<u8> = tokens.iter().map(|id| b'a' + (id % 26) as u8).collect();
        let completes = |place: usize| {
            params.dry_sequence_breakers.iter().any(|it| text[..=place].ends_with(it.as_bytes()))
        };
        let mut longest = vec![0usize; row.len()];
        for earlier in start..end {
            let reach = (0..=earlier - start)
                .take_while(|&back| tokens[earlier - back] == tokens[end - back] && !completes(end - back))
                .count();
            if let Some(length) = longest.get_mut(tokens[earlier + 1] as usize) {
                *length = reach.max(*length);
            }
        }
        for (logit, length) in row.iter_mut().zip(longest) {
            if length >= settings.allowed_length as usize {
                let exponent = (length - settings.allowed_length as usize).min(10_000);
                *logit -= settings.multiplier * power(settings.base, exponent).min(3.0e38);
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Action {
    Push(u32),
    /// Truncates by this many tokens, then appends the same tokens except one.
    Regrow(usize),
    /// Truncates by this many tokens, like a rejected draft.
    Back(usize),
    Truncate(usize),
    /// Replaces the other history with a clone of this one.
    Fork,
    /// Continues with the other history.
    Switch,
    Draw,
    /// Guesses this many tokens ahead, as a draft model does.
    Guess(usize),
    /// Draws while the tokens equal this draft, and once more.
    Span(Vec<u32>),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    // Few distinct tokens, so that sequences repeat; some outside of the row.
    let action = prop_oneof![
        8 => (0..VOCABULARY + 2).prop_map(|token| Action::Push(if token > 6 { token } else { token % 3 })),
        1 => (1..12usize).prop_map(Action::Regrow),
        2 => (1..5usize).prop_map(Action::Back),
        2 => (0..40usize).prop_map(Action::Truncate),
        1 => Just(Action::Fork),
        1 => Just(Action::Switch),
        4 => Just(Action::Draw),
        2 => (0..9usize).prop_map(Action::Guess),
        2 => proptest::collection::vec(0..VOCABULARY, 0..6).prop_map(Action::Span),
    ];
    proptest::collection::vec(action, 1..120)
}

fn windows() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![
        Just(None),
        Just(Some(-1)),
        Just(Some(0)),
        Just(Some(1)),
        Just(Some(5)),
        Just(Some(20)),
        Just(Some(64))
    ]
}

fn maybe(range: std::ops::Range<f32>) -> impl Strategy<Value = Option<f32>> {
    proptest::option::of(range)
}

fn settings() -> impl Strategy<Value = SamplingOptions> {
    let penalties = (maybe(0.5..2.0), maybe(-1.0..1.0), maybe(-1.0..1.0), windows()).prop_map(
        |(repetition_penalty, frequency_penalty, presence_penalty, penalty_last_n)| SamplingOptions {
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            penalty_last_n,
            ..SamplingOptions::default()
        },
    );
    let breakers = prop_oneof![
        Just(None),
        Just(Some(vec![])),
        Just(Some(vec!["c".to_owned()])),
        Just(Some(vec!["ab".to_owned(), "j".to_owned()])),
        Just(Some(vec!["bab".to_owned()])),
    ];
    let dry = (maybe(0.1..3.0), maybe(1.0..4.0), proptest::option::of(1..5u32), windows(), breakers)
        .prop_map(|(multiplier, base, allowed_length, window, breakers)| SamplingOptions {
            dry_multiplier: multiplier,
            dry_base: base,
            dry_allowed_length: allowed_length,
            dry_penalty_last_n: window,
            dry_sequence_breakers: breakers,
            ..SamplingOptions::default()
        });
    let bias = proptest::collection::btree_map(0..VOCABULARY + 3, -5.0..5.0f32, 0..3);
    (penalties, dry, bias).prop_map(|(penalties, dry, bias)| SamplingOptions {
        logit_bias: bias.into_iter().collect(),
        temperature: Some(0.0),
        ..penalties.or(&dry)
    })
}

/// Generates rows with the precision of f32, f16 or bf16, widened to f32.
fn rows() -> impl Strategy<Value = Vec<f32>> {
    let row = proptest::collection::vec(-8.0..8.0f32, VOCABULARY as usize);
    (row, 0..3).prop_map(|(row, dtype)| {
        let round = |x: f32| match dtype {
            0 => x,
            1 => f16::from_f32(x).to_f32(),
            _ => bf16::from_f32(x).to_f32(),
        };
        row.into_iter().map(round).collect()
    })
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn edited_rows_equal_a_rebuild_byte_for_byte(
        prompt in proptest::collection::vec(0..4u32, 0..30),
        actions in actions(),
        options in settings(),
        raw in rows(),
    ) {
        let params = resolve(&options);
        let mut sampler = sampler(&options);
        let mut history = TokenHistory::new(prompt);
        let mut other = history.clone();
        let (mut buffer, mut mask) = (Vec::new(), TokenMask::default());
        let mut scratch = Scratch::default();
        let likeliest = |history: &TokenHistory| {
            let mut expected = raw.clone();
            oracle::edit(&mut expected, history, &params);
            (0..expected.len()).fold(0, |best, id| if expected[id] > expected[best] { id } else { best }) as u32
        };
        for action in actions {
            match action {
                Action::Push(token) => history.push(token),
                Action::Fork => other = history.clone(),
                Action::Switch => std::mem::swap(&mut history, &mut other),
                Action::Truncate(length) => history.truncate(length),
                Action::Back(count) => history.truncate(history.len().saturating_sub(count)),
                Action::Regrow(count) => {
                    let tail = history.tokens()[history.len().saturating_sub(count)..].to_vec();
                    history.truncate(history.len() - tail.len());
                    for (place, &token) in tail.iter().enumerate() {
                        history.push(if place == 0 { (token + 1) % 3 } else { token });
                    }
                    // Grow past the old length, with the same last token.
                    history.push(tail.last().copied().unwrap_or(0));
                }
                Action::Guess(ahead) => {
                    let guess = sampler.guess(&raw, &history, ahead, &mut scratch).expect("no constraint");
                    prop_assert_eq!(guess, likeliest(&history), "a guess has the penalties of the true text");
                }
                Action::Span(mut draft) => {
                    // Some drafts start with correct tokens.
                    let mut foreseen = history.clone();
                    for token in draft.iter_mut().filter(|token| **token % 3 > 0) {
                        *token = likeliest(&foreseen);
                        foreseen.push(*token);
                    }
                    for drafted in draft.iter().map(Some).chain([None]) {
                        let expected = likeliest(&history);
                        let drawn = sampler.draw_row(&raw, &history, &mut scratch).expect("a draw").token;
                        prop_assert_eq!(drawn, expected, "{:?} on {:?}", params, history);
                        history.push(drawn);
                        if drafted != Some(&drawn) {
                            break;
                        }
                    }
                }
                Action::Draw => {
                    let is_edited = sampler.edit(&raw, &history, &mut buffer, Some(&mut mask)).expect("no constraint");
                    let edited = if is_edited { &buffer } else { &raw };
                    let mut expected = raw.clone();
                    oracle::edit(&mut expected, &history, &params);
                    prop_assert_eq!(bits(edited), bits(&expected), "{:?} on {:?}", params, history);
                    // The edits of a device, which subtracts in another order.
                    let mut likely = raw.clone();
                    for edit in sampler.pending_draw(&history).expect("no constraint").edits {
                        edit.apply(&mut likely);
                    }
                    let near = |(one, other): (&f32, &f32)| one.total_cmp(other).is_eq() || (one - other).abs() <= 1e-5 * (1.0 + other.abs());
                    prop_assert!(likely.iter().zip(&expected).all(near), "{:?} instead of {:?}", likely, expected);
                }
            }
        }
    }
}

/// The number of cases: 300 by default. `PROPTEST_CASES=10000` is the full run.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

fn wavy_row(length: usize) -> Vec<f32> {
    (0..length).map(|id| (id as f32 * 0.37).sin() * 4.0 + (id as f32 * 0.011).cos()).collect()
}

fn all_penalties() -> SamplingOptions {
    SamplingOptions {
        temperature: Some(0.0),
        repetition_penalty: Some(1.2),
        frequency_penalty: Some(0.1),
        presence_penalty: Some(0.3),
        penalty_last_n: Some(64),
        dry_multiplier: Some(0.8),
        ..SamplingOptions::default()
    }
}

#[test]
fn two_hundred_greedy_steps_with_all_penalties_are_the_oracles() {
    let (options, row) = (all_penalties(), wavy_row(40));
    let params = resolve(&options);
    let mut sampler = sampler(&options);
    let mut scratch = Scratch::default();
    let mut history = TokenHistory::new(vec![3, 1, 4, 1, 5, 9, 2, 6]);
    for step in 0..200 {
        // The row changes with each step, as a model's does.
        let raw: Vec<f32> = row.iter().map(|logit| logit + (step as f32 * 0.1 + logit).sin()).collect();
        let mut expected = raw.clone();
        oracle::edit(&mut expected, &history, &params);
        let best = (0..40).fold(0, |best, id| if expected[id] > expected[best] { id } else { best });
        let drawn = sampler.draw_row(&raw, &history, &mut scratch).expect("a draw").token;
        assert_eq!(drawn, best as u32, "step {step}");
        history.push(drawn);
    }
}

/// Tests multi-token and partial breakers.
#[test]
fn a_breaker_across_tokens_stops_a_repeated_sequence() {
    let dry = |breakers: &[&str]| SamplingOptions {
        dry_multiplier: Some(1.0),
        dry_base: Some(2.0),
        dry_sequence_breakers: Some(breakers.iter().map(|&text| text.to_owned()).collect()),
        ..SamplingOptions::default()
    };
    // d e a b f | d e a b: the newest four tokens repeat the first four, so f would continue them.
    let history = TokenHistory::new(vec![3, 4, 0, 1, 5, 3, 4, 0, 1]);
    let penalty = |breakers: &[&str]| {
        let params = resolve(&dry(breakers));
        let (mut state, mut row) = (SamplerState::default(), vec![0.0; 12]);
        state.sync(&history, &params, &Breakers::new(&params.dry_sequence_breakers, token_table().text));
        state.apply(&params, &mut row);
        -row[5]
    };
    let expect = |breakers: &[&str], expected: f32| {
        assert!((penalty(breakers) - expected).abs() < 1e-6, "{breakers:?}: {}", penalty(breakers));
    };
    expect(&[], 4.0);
    // The repeated tokens after the breaker: two, one, none.
    expect(&["de"], 1.0);
    expect(&["ea"], 0.0);
    expect(&["b"], 0.0);
}
