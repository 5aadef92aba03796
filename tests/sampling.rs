//! Sampling: the incremental state equals a rebuild from the whole history, byte for byte; what is off costs
//! nothing; draws follow their distributions.

use std::sync::Arc;

use half::{bf16, f16};
use mlx_core::sampling::{
    Breakers, Constraint, DryOptions, PenaltyOptions, Sampler, SamplerState, SamplingOptions, SamplingParams,
    Scratch, TokenHistory, TokenMask, TokenTable, XtcOptions,
};
use mlx_core::{Error, Result};
use proptest::prelude::*;

const VOCABULARY: u32 = 12;

/// Every token is a letter; some are breakers, alone or together.
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

/// The same edits, written as docs/sampling.md has them, from the whole history at once.
mod oracle {
    use super::{SamplingParams, TokenHistory};

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
        let penalties = params.penalties;
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
        if params.dry.multiplier > 0.0 && params.dry.window != 0 {
            dry(row, history, params);
        }
    }

    /// `base^exponent`, by squaring from the lowest bit.
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
        let (tokens, settings) = (history.tokens(), &params.dry);
        let start = window(history, settings.window);
        let Some(end) = tokens.len().checked_sub(1) else { return };
        let text: Vec<u8> = tokens.iter().map(|id| b'a' + (id % 26) as u8).collect();
        let completes =
            |place: usize| settings.breakers.iter().any(|it| text[..=place].ends_with(it.as_bytes()));
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
    /// Cut this many tokens off, and grow again by the same tokens but one.
    Regrow(usize),
    Truncate(usize),
    Draw,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    // Few tokens, so that sequences repeat; some beyond the row.
    let action = prop_oneof![
        8 => (0..VOCABULARY + 2).prop_map(|token| Action::Push(if token > 6 { token } else { token % 3 })),
        1 => (1..12usize).prop_map(Action::Regrow),
        1 => (0..40usize).prop_map(Action::Truncate),
        4 => Just(Action::Draw),
    ];
    proptest::collection::vec(action, 1..120)
}

fn windows() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![Just(None), Just(Some(-1)), Just(Some(0)), Just(Some(1)), Just(Some(20)), Just(Some(64))]
}

fn maybe(range: std::ops::Range<f32>) -> impl Strategy<Value = Option<f32>> {
    proptest::option::of(range)
}

fn settings() -> impl Strategy<Value = SamplingOptions> {
    let penalties = (maybe(0.5..2.0), maybe(-1.0..1.0), maybe(-1.0..1.0), windows()).prop_map(
        |(repetition, frequency, presence, window)| PenaltyOptions {
            repetition,
            frequency,
            presence,
            window,
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
        .prop_map(|(multiplier, base, allowed_length, window, breakers)| DryOptions {
            multiplier,
            base,
            allowed_length,
            window,
            breakers,
        });
    let bias = proptest::collection::btree_map(0..VOCABULARY + 3, -5.0..5.0f32, 0..3);
    (penalties, dry, bias).prop_map(|(penalties, dry, bias)| SamplingOptions {
        penalties,
        dry,
        logit_bias: bias.into_iter().collect(),
        temperature: Some(0.0),
        ..SamplingOptions::default()
    })
}

/// Rows as a model of this float type gives them, widened.
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
        let (mut edited, mut mask) = (Vec::new(), TokenMask::default());
        for action in actions {
            match action {
                Action::Push(token) => history.push(token),
                Action::Truncate(length) => history.truncate(length),
                Action::Regrow(count) => {
                    let tail = history.tokens()[history.len().saturating_sub(count)..].to_vec();
                    history.truncate(history.len() - tail.len());
                    for (place, &token) in tail.iter().enumerate() {
                        history.push(if place == 0 { (token + 1) % 3 } else { token });
                    }
                    // Past the old length, by the same last token.
                    history.push(tail.last().copied().unwrap_or(0));
                }
                Action::Draw => {
                    if !sampler.edit(&raw, &history, &mut edited, &mut mask).expect("no constraint") {
                        edited.clone_from(&raw);
                    }
                    let mut expected = raw.clone();
                    oracle::edit(&mut expected, &history, &params);
                    prop_assert_eq!(bits(&edited), bits(&expected), "{:?} on {:?}", params, history);
                }
            }
        }
    }
}

/// A few hundred by default; `PROPTEST_CASES=10000` is the full run.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

fn wavy_row(length: usize) -> Vec<f32> {
    (0..length).map(|id| (id as f32 * 0.37).sin() * 4.0 + (id as f32 * 0.011).cos()).collect()
}

fn all_penalties() -> SamplingOptions {
    SamplingOptions {
        temperature: Some(0.0),
        penalties: PenaltyOptions {
            repetition: Some(1.2),
            frequency: Some(0.1),
            presence: Some(0.3),
            window: Some(64),
        },
        dry: DryOptions { multiplier: Some(0.8), ..DryOptions::default() },
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
        // The row changes with the step, as a model's does.
        let raw: Vec<f32> = row.iter().map(|logit| logit + (step as f32 * 0.1 + logit).sin()).collect();
        let mut expected = raw.clone();
        oracle::edit(&mut expected, &history, &params);
        let best = (0..40).fold(0, |best, id| if expected[id] > expected[best] { id } else { best });
        let drawn = sampler.draw_row(&raw, &history, &mut scratch).expect("a draw").token;
        assert_eq!(drawn, best as u32, "step {step}");
        history.push(drawn);
    }
    assert!(sampler.has_state());
}

/// Allocations of one draw after `length` tokens, once the buffers have their size.
fn allocations(options: &SamplingOptions, length: u32) -> (u64, bool) {
    let (row, mut sampler, mut scratch) = (wavy_row(1000), sampler(options), Scratch::default());
    let mut history = TokenHistory::new((0..length).map(|place| place * 31 % 1000).collect());
    sampler.draw_row(&row, &history, &mut scratch).expect("a draw");
    history.push(1);
    let counted = allocation_counter::measure(|| {
        sampler.draw_row(&row, &history, &mut scratch).expect("a draw");
    });
    (counted.count_total, sampler.has_state())
}

#[test]
fn what_is_off_has_no_state_and_a_step_allocates_nothing() {
    let with = SamplingOptions::default;
    let plain = [
        SamplingOptions { temperature: Some(0.0), ..with() },
        with(),
        SamplingOptions {
            top_k: Some(40),
            top_p: Some(0.9),
            min_p: Some(0.05),
            typical_p: Some(0.9),
            ..with()
        },
        SamplingOptions { xtc: XtcOptions { probability: Some(1.0), threshold: Some(0.001) }, ..with() },
        // Switched off by their windows or values.
        SamplingOptions {
            penalties: PenaltyOptions { repetition: Some(1.3), window: Some(0), ..PenaltyOptions::default() },
            dry: DryOptions { multiplier: Some(0.0), ..DryOptions::default() },
            ..with()
        },
    ];
    for options in plain {
        for length in [10, 100_000] {
            assert_eq!(allocations(&options, length), (0, false), "{options:?} after {length} tokens");
        }
    }
    assert!(allocations(&all_penalties(), 10).1);
}

#[test]
fn a_rollback_leaves_the_stream_of_draws_unchanged() {
    let options = SamplingOptions { top_p: Some(0.95), seed: Some(77), ..all_penalties() };
    let options = SamplingOptions { temperature: Some(1.0), ..options };
    let row = wavy_row(60);
    let straight = |drafts: bool| {
        let (mut sampler, mut scratch) = (sampler(&options), Scratch::default());
        let mut history = TokenHistory::new(vec![1, 2, 3]);
        for step in 0..60usize {
            if drafts && step % 3 == 0 {
                // Some tokens run ahead, are found wanting, and go.
                let length = history.len();
                for _ in 0..step % 5 {
                    let draft = sampler.draw_row(&row, &history, &mut scratch).expect("a draw").token;
                    history.push((draft + 1) % 60);
                }
                history.truncate(length);
            }
            let token = sampler.draw_row(&row, &history, &mut scratch).expect("a draw").token;
            history.push(token);
        }
        history.tokens().to_vec()
    };
    assert_eq!(straight(true), straight(false));
}

/// Draws `count` tokens from a row of log-shares, each at another position.
fn counts(options: &SamplingOptions, shares: &[f64], count: usize) -> Vec<u64> {
    let row: Vec<f32> = shares.iter().map(|share| share.ln() as f32).collect();
    let (mut sampler, mut scratch) = (sampler(options), Scratch::default());
    let mut history = TokenHistory::default();
    let mut counts = vec![0; shares.len()];
    for _ in 0..count {
        let token = sampler.draw_row(&row, &history, &mut scratch).expect("a draw").token;
        counts[token as usize] += 1;
        history.push(token);
    }
    counts
}

/// Pearson's statistic against the expected shares; a token of share 0 must not have come.
fn chi_square(counts: &[u64], shares: &[f64]) -> f64 {
    let (draws, total) = (counts.iter().sum::<u64>() as f64, shares.iter().sum::<f64>());
    counts
        .iter()
        .zip(shares)
        .map(|(&count, share)| {
            let expected = draws * share / total;
            assert!(expected > 0.0 || count == 0, "a token that was filtered out came");
            if expected > 0.0 { (count as f64 - expected).powi(2) / expected } else { 0.0 }
        })
        .sum()
}

#[test]
fn draws_follow_what_each_filter_leaves() {
    let shares = [0.30, 0.05, 0.20, 0.02, 0.25, 0.10, 0.08];
    let with = SamplingOptions::default;
    let kept = |ids: &[usize]| {
        (0..shares.len()).map(|id| if ids.contains(&id) { shares[id] } else { 0.0 }).collect::<Vec<f64>>()
    };
    let tempered: Vec<f64> = shares.iter().map(|share: &f64| share.powf(1.0 / 0.7)).collect();
    let xtc = XtcOptions { probability: Some(1.0), threshold: Some(0.19) };
    let half = XtcOptions { probability: Some(0.5), threshold: Some(0.19) };
    let excluded = kept(&[1, 2, 3, 5, 6]);
    let rest: f64 = excluded.iter().sum();
    let mixed = shares.iter().zip(&excluded).map(|(all, left)| 0.5 * all + 0.5 * left / rest).collect();
    let cases: [(&str, SamplingOptions, Vec<f64>); 8] = [
        ("none", with(), shares.to_vec()),
        ("temperature", SamplingOptions { temperature: Some(0.7), ..with() }, tempered),
        ("top-k", SamplingOptions { top_k: Some(3), ..with() }, kept(&[0, 2, 4])),
        ("top-p", SamplingOptions { top_p: Some(0.7), ..with() }, kept(&[0, 2, 4])),
        ("min-p", SamplingOptions { min_p: Some(0.3), ..with() }, kept(&[0, 2, 4, 5])),
        // The entropy is 1.71 nats; 0.20 (1.61) is nearest, then 0.25 (1.39) and 0.30 (1.20).
        ("typical-p", SamplingOptions { typical_p: Some(0.6), ..with() }, kept(&[0, 2, 4])),
        ("xtc", SamplingOptions { xtc, ..with() }, excluded),
        ("xtc half of the time", SamplingOptions { xtc: half, ..with() }, mixed),
    ];
    for (name, options, expected) in cases {
        let counts = counts(&options, &shares, 60_000);
        // The 99.99 % point for 6 degrees of freedom is 27.9; seeds are fixed, so this passes or fails for good.
        let statistic = chi_square(&counts, &expected);
        assert!(statistic < 27.9, "{name}: chi-square {statistic:.1}, {counts:?}");
    }
}

/// Cases in which another order of two stages would leave other tokens.
#[test]
fn the_stages_run_in_their_order() {
    let with = SamplingOptions::default;
    let xtc = XtcOptions { probability: Some(1.0), threshold: Some(0.25) };
    let cases: [(SamplingOptions, &[f64], &[usize]); 4] = [
        (SamplingOptions { top_k: Some(2), top_p: Some(0.55), ..with() }, &[0.4, 0.3, 0.2, 0.1], &[0]),
        (SamplingOptions { typical_p: Some(0.2), top_p: Some(0.5), ..with() }, &[0.6, 0.3, 0.1], &[1]),
        (
            SamplingOptions { top_p: Some(0.82), min_p: Some(0.25), ..with() },
            &[0.5, 0.3, 0.15, 0.05],
            &[0, 1, 2],
        ),
        (SamplingOptions { min_p: Some(0.5), xtc, ..with() }, &[0.5, 0.3, 0.2], &[1]),
    ];
    for (options, shares, kept) in cases {
        let counts = counts(&options, shares, 400);
        let came: Vec<usize> = (0..shares.len()).filter(|&id| counts[id] > 0).collect();
        assert_eq!(came, kept, "{options:?}");
    }
}

/// The test vectors of docs/sampling.md, as tokens: of four equal logits, the one in whose quarter `u` lies.
#[test]
fn a_draw_is_keyed_by_seed_and_position() {
    for (seed, position, k) in [(0, 1, 14_339_980u32), (1, 0, 2_705_585), (42, 17, 8_592_416)] {
        let mut sampler = sampler(&SamplingOptions { seed: Some(seed), ..SamplingOptions::default() });
        let history = TokenHistory::new(vec![0; position]);
        let draw = sampler.draw_row(&[1.5; 4], &history, &mut Scratch::default()).expect("a draw");
        assert_eq!(draw.token, k >> 22, "seed {seed}, position {position}");
    }
}

#[test]
fn a_gap_of_a_hundred_logits_is_never_bridged() {
    let row: Vec<f32> = (0..24).map(|id| if id == 17 { 100.0 } else { 0.0 }).collect();
    let (mut sampler, mut scratch) = (sampler(&SamplingOptions::default()), Scratch::default());
    let mut history = TokenHistory::default();
    for _ in 0..1_000_000 {
        assert_eq!(sampler.draw_row(&row, &history, &mut scratch).expect("a draw").token, 17);
        history.push(17);
    }
}

/// Allows only the token after the last one; nothing after token 9.
struct Successor;

impl Constraint for Successor {
    fn restrict(&mut self, history: &TokenHistory, allowed: &mut TokenMask) -> Result<()> {
        allowed.forbid_all();
        match history.tokens().last() {
            Some(9) => {}
            last => allowed.allow(last.map_or(0, |token| token + 1)),
        }
        Ok(())
    }
}

#[test]
fn a_constraint_leaves_only_what_it_allows_and_nothing_is_an_error() {
    let row = wavy_row(40);
    for options in [SamplingOptions::default(), all_penalties()] {
        let mut sampler = sampler(&options).with_constraint(Box::new(Successor));
        let (mut history, mut scratch) = (TokenHistory::default(), Scratch::default());
        for expected in 0..10 {
            let token = sampler.draw_row(&row, &history, &mut scratch).expect("a draw").token;
            assert_eq!(token, expected);
            history.push(token);
        }
        let error = sampler.draw_row(&row, &history, &mut scratch).expect_err("nothing is allowed");
        assert!(matches!(error, Error::Mlx(message) if message.contains("no token is left")));
    }
}

#[test]
fn rows_without_a_distribution_are_errors() {
    let (mut sampler, mut scratch) = (sampler(&SamplingOptions::default()), Scratch::default());
    for row in [[f32::NAN, 1.0], [f32::INFINITY, 1.0], [f32::NEG_INFINITY, f32::NEG_INFINITY]] {
        assert!(sampler.draw_row(&row, &TokenHistory::default(), &mut scratch).is_err(), "{row:?}");
    }
}

/// Multi-token and partial breakers, spelled out.
#[test]
fn a_breaker_across_tokens_stops_a_repeated_sequence() {
    let dry = |breakers: &[&str]| DryOptions {
        multiplier: Some(1.0),
        base: Some(2.0),
        breakers: Some(breakers.iter().map(|&text| text.to_owned()).collect()),
        ..DryOptions::default()
    };
    // d e a b f | d e a b: the newest four tokens repeat the first four, so f would go on.
    let history = TokenHistory::new(vec![3, 4, 0, 1, 5, 3, 4, 0, 1]);
    let penalty = |breakers: &[&str]| {
        let options = SamplingOptions { dry: dry(breakers), ..SamplingOptions::default() };
        let params = resolve(&options);
        let (mut state, mut row) = (SamplerState::default(), vec![0.0; 12]);
        state.sync(&history, &params, &Breakers::new(&params.dry.breakers, token_table().text));
        state.apply(&history, &params, &mut row);
        -row[5]
    };
    let expect = |breakers: &[&str], expected: f32| {
        assert!((penalty(breakers) - expected).abs() < 1e-6, "{breakers:?}: {}", penalty(breakers));
    };
    expect(&[], 4.0);
    // What is left of the repeat after the breaker: two tokens, one, none.
    expect(&["de"], 1.0);
    expect(&["ea"], 0.0);
    expect(&["b"], 0.0);
}
