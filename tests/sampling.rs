//! Sampling: disabled features cost nothing, draws follow their distributions, and a rollback does not change them. The incremental
//! state is compared with a rebuild in mlx-core/src/sampling/sampler/tests.rs.

use std::sync::Arc;

use mlx_core::sampling::{
    Constraint, Sampler, SamplingOptions, SamplingParams, Scratch, TokenHistory, TokenMask, TokenTable,
};
use mlx_core::{Error, Result};

/// Returns a table of single-letter tokens; some are sequence breakers, as single tokens or combined.
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

/// Returns the allocations of a sampler's first draw after `length` tokens, once the shared buffers have their size.
fn allocations(options: &SamplingOptions, length: u32) -> u64 {
    let (row, mut scratch) = (wavy_row(1000), Scratch::default());
    let history = TokenHistory::new((0..length).map(|index| index * 31 % 1000).collect());
    sampler(options).draw_row(&row, &history, &mut scratch).expect("a draw");
    let mut sampler = sampler(options);
    let counted = allocation_counter::measure(|| {
        sampler.draw_row(&row, &history, &mut scratch).expect("a draw");
    });
    counted.count_total
}

#[test]
fn disabled_features_have_no_state_and_a_draw_allocates_nothing() {
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
        SamplingOptions { xtc_probability: Some(1.0), xtc_threshold: Some(0.001), ..with() },
        // Disabled by their windows or values.
        SamplingOptions {
            repetition_penalty: Some(1.3),
            penalty_last_n: Some(0),
            dry_multiplier: Some(0.0),
            ..with()
        },
    ];
    for options in plain {
        for length in [10, 100_000] {
            assert_eq!(allocations(&options, length), 0, "{options:?} after {length} tokens");
        }
    }
    assert!(allocations(&all_penalties(), 10) > 0);
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
                // Some tokens are drafted and rejected.
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

/// Draws `count` tokens from a row of log probabilities, each at another position.
fn counts(options: &SamplingOptions, probabilities: &[f64], count: usize) -> Vec<u64> {
    let row: Vec<f32> = probabilities.iter().map(|share| share.ln() as f32).collect();
    let (mut sampler, mut scratch) = (sampler(options), Scratch::default());
    let mut history = TokenHistory::default();
    let mut counts = vec![0; probabilities.len()];
    for _ in 0..count {
        let token = sampler.draw_row(&row, &history, &mut scratch).expect("a draw").token;
        counts[token as usize] += 1;
        history.push(token);
    }
    counts
}

/// Returns Pearson's statistic against the expected probabilities; a token of probability 0 must not have been drawn.
fn chi_square(counts: &[u64], probabilities: &[f64]) -> f64 {
    let (draws, total) = (counts.iter().sum::<u64>() as f64, probabilities.iter().sum::<f64>());
    counts
        .iter()
        .zip(probabilities)
        .map(|(&count, share)| {
            let expected = draws * share / total;
            assert!(expected > 0.0 || count == 0, "a filtered token was drawn");
            if expected > 0.0 { (count as f64 - expected).powi(2) / expected } else { 0.0 }
        })
        .sum()
}

#[test]
fn draws_follow_the_distribution_after_each_filter() {
    let probabilities = [0.30, 0.05, 0.20, 0.02, 0.25, 0.10, 0.08];
    let with = SamplingOptions::default;
    let remaining = |ids: &[usize]| {
        (0..probabilities.len())
            .map(|id| if ids.contains(&id) { probabilities[id] } else { 0.0 })
            .collect::<Vec<f64>>()
    };
    let tempered: Vec<f64> = probabilities.iter().map(|share: &f64| share.powf(1.0 / 0.7)).collect();
    let xtc = |probability| SamplingOptions {
        xtc_probability: Some(probability),
        xtc_threshold: Some(0.19),
        ..with()
    };
    let excluded = remaining(&[1, 2, 3, 5, 6]);
    let rest: f64 = excluded.iter().sum();
    let mixed =
        probabilities.iter().zip(&excluded).map(|(all, left)| 0.5 * all + 0.5 * left / rest).collect();
    let cases: [(&str, SamplingOptions, Vec<f64>); 8] = [
        ("none", with(), probabilities.to_vec()),
        ("temperature", SamplingOptions { temperature: Some(0.7), ..with() }, tempered),
        ("top-k", SamplingOptions { top_k: Some(3), ..with() }, remaining(&[0, 2, 4])),
        ("top-p", SamplingOptions { top_p: Some(0.7), ..with() }, remaining(&[0, 2, 4])),
        ("min-p", SamplingOptions { min_p: Some(0.3), ..with() }, remaining(&[0, 2, 4, 5])),
        // The entropy is 1.71 nats; 0.20 (1.61) is nearest, then 0.25 (1.39) and 0.30 (1.20).
        ("typical-p", SamplingOptions { typical_p: Some(0.6), ..with() }, remaining(&[0, 2, 4])),
        ("xtc", xtc(1.0), excluded),
        ("xtc half of the time", xtc(0.5), mixed),
    ];
    for (name, options, expected) in cases {
        let counts = counts(&options, &probabilities, 60_000);
        // The 99.99 % point for 6 degrees of freedom is 27.9; seeds are fixed, so this passes or fails for good.
        let statistic = chi_square(&counts, &expected);
        assert!(statistic < 27.9, "{name}: chi-square {statistic:.1}, {counts:?}");
    }
}

/// Cases in which swapping two stages would select other tokens.
#[test]
fn the_stages_run_in_the_documented_order() {
    let with = SamplingOptions::default;
    let xtc = SamplingOptions { xtc_probability: Some(1.0), xtc_threshold: Some(0.25), ..with() };
    let cases: [(SamplingOptions, &[f64], &[usize]); 4] = [
        (SamplingOptions { top_k: Some(2), top_p: Some(0.55), ..with() }, &[0.4, 0.3, 0.2, 0.1], &[0]),
        (SamplingOptions { typical_p: Some(0.2), top_p: Some(0.5), ..with() }, &[0.6, 0.3, 0.1], &[1]),
        (
            SamplingOptions { top_p: Some(0.82), min_p: Some(0.25), ..with() },
            &[0.5, 0.3, 0.15, 0.05],
            &[0, 1, 2],
        ),
        (SamplingOptions { min_p: Some(0.5), ..xtc }, &[0.5, 0.3, 0.2], &[1]),
    ];
    for (options, probabilities, remaining) in cases {
        let counts = counts(&options, probabilities, 400);
        let came: Vec<usize> = (0..probabilities.len()).filter(|&id| counts[id] > 0).collect();
        assert_eq!(came, remaining, "{options:?}");
    }
}

/// The test vectors of docs/sampling.md as tokens: of four equal logits, `u` selects one by its quarter.
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
fn a_token_a_hundred_logits_below_is_never_drawn() {
    let row: Vec<f32> = (0..24).map(|id| if id == 17 { 100.0 } else { 0.0 }).collect();
    let (mut sampler, mut scratch) = (sampler(&SamplingOptions::default()), Scratch::default());
    let mut history = TokenHistory::default();
    for _ in 0..1_000_000 {
        assert_eq!(sampler.draw_row(&row, &history, &mut scratch).expect("a draw").token, 17);
        history.push(17);
    }
}

/// Allows only the successor of the last token, and nothing after token 9.
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
fn a_constraint_limits_the_draw_and_an_empty_set_is_an_error() {
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
        assert!(matches!(error, Error::Sampling(message) if message.contains("no token is left")));
    }
}

#[test]
fn rows_without_a_valid_distribution_are_errors() {
    let (mut sampler, mut scratch) = (sampler(&SamplingOptions::default()), Scratch::default());
    for row in [[f32::NAN, 1.0], [f32::INFINITY, 1.0], [f32::NEG_INFINITY, f32::NEG_INFINITY]] {
        assert!(sampler.draw_row(&row, &TokenHistory::default(), &mut scratch).is_err(), "{row:?}");
    }
}
