//! Draws from many rows at once: each row has the bits of a single draw, whatever the sampling parameters of the others.

use std::sync::Arc;

use mlx_core::array::Rows;
use mlx_core::sampling::{
    Constraint, Draw, DrawRequest, Sampler, SamplingOptions, SamplingParams, Scratch, TokenHistory,
    TokenMask, TokenTable, score,
};
use mlx_core::{Error, Result};
use mlx_rs::{Array, Dtype};
use mlx_tests::device;

const WIDTH: usize = 500;

/// A constraint that forbids even ids.
struct Odd;

impl Constraint for Odd {
    fn restrict(&mut self, _: &TokenHistory, allowed: &mut TokenMask) -> Result<()> {
        (0..WIDTH as u32).step_by(2).for_each(|id| allowed.forbid(id));
        Ok(())
    }
}

/// A constraint that forbids everything.
struct Nothing;

impl Constraint for Nothing {
    fn restrict(&mut self, _: &TokenHistory, allowed: &mut TokenMask) -> Result<()> {
        allowed.forbid_all();
        Ok(())
    }
}

/// Returns one sampler of every kind, each with its own history.
fn samplers() -> Vec<(Sampler, TokenHistory)> {
    let token_table =
        TokenTable { text: Arc::new(|id| id.to_le_bytes().to_vec()), protected: Arc::from([7]) };
    let with = SamplingOptions::default;
    let penalized = SamplingOptions {
        repetition_penalty: Some(1.3),
        frequency_penalty: Some(0.4),
        dry_multiplier: Some(1.0),
        ..with()
    };
    let excluding = SamplingOptions {
        xtc_probability: Some(0.7),
        xtc_threshold: Some(0.01),
        min_p: Some(0.01),
        logit_bias: vec![(3, 5.0)],
        ..with()
    };
    let kinds = [
        (SamplingOptions { temperature: Some(0.0), ..with() }, None),
        (with(), None),
        (with(), Some(5)),
        (SamplingOptions { temperature: Some(0.5), top_k: Some(30), top_p: Some(0.9), ..with() }, Some(0)),
        (penalized, Some(3)),
        (excluding, None),
    ];
    let sampler = |(seed, (options, logprobs)): (u64, (SamplingOptions, Option<usize>))| {
        let options = SamplingOptions { seed: Some(seed), ..options };
        let params = SamplingParams::resolve(&options, &SamplingOptions::default()).expect("valid options");
        Sampler::new(params, logprobs, &token_table)
    };
    let mut samplers: Vec<Sampler> = (0..).zip(kinds).map(sampler).collect();
    samplers.push(sampler((9, (with(), Some(2)))).with_constraint(Box::new(Odd)));
    samplers.push(sampler((10, (with(), None))).with_constraint(Box::new(Nothing)));
    let history = |row: usize| TokenHistory::new((0..20 + row as u32).map(|index| index * 7 % 5).collect());
    samplers.into_iter().enumerate().map(|(row, sampler)| (sampler, history(row))).collect()
}

fn rows(count: usize) -> Vec<f32> {
    let value = |index: usize| ((index * 7919 % 10007) as f32 / 1000.0).sin() * 6.0;
    let mut rows: Vec<f32> = (0..count * WIDTH).map(value).collect();
    // One row in the middle is invalid.
    rows[2 * WIDTH + 9] = f32::NAN;
    rows
}

fn device_rows(values: &[f32], dtype: Dtype) -> Rows {
    let rows = Array::from_slice(values, &[(values.len() / WIDTH) as i32, WIDTH as i32]);
    Rows::new(&rows.as_dtype(dtype).expect("a cast")).expect("a cast")
}

fn same(left: &Result<Draw>, right: &Result<Draw>) -> bool {
    match (left, right) {
        (Ok(left), Ok(right)) => left == right,
        (Err(Error::Sampling(left)), Err(Error::Sampling(right))) => left == right,
        (Err(Error::NotFinite(left)), Err(Error::NotFinite(right))) => left == right,
        _ => false,
    }
}

#[test]
fn a_row_draws_the_same_token_alone_and_in_a_batch() {
    let _turn = device();
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        let mut together = samplers();
        let mut alone = samplers();
        let count = together.len();
        let values = rows(count);
        let batch = device_rows(&values, dtype);
        let mut scratch = Scratch::default();
        for step in 0..12 {
            let mut company: Vec<_> = together
                .iter_mut()
                .enumerate()
                .map(|(row, (sampler, history))| DrawRequest { row, sampler, history })
                .collect();
            let drawn = Sampler::draw(&batch, &mut company, &mut scratch).expect("the rows can be read");
            for (row, of_batch) in drawn.iter().enumerate() {
                let (sampler, history) = &mut alone[row];
                let single = device_rows(&values[row * WIDTH..(row + 1) * WIDTH], dtype);
                let mut request = [DrawRequest { row: 0, sampler, history }];
                let of_one = Sampler::draw(&single, &mut request, &mut Scratch::default());
                let of_one = of_one.expect("the row can be read").pop().expect("one row");
                assert!(
                    same(of_batch, &of_one),
                    "{dtype:?}, step {step}, row {row}: {of_batch:?} and {of_one:?}"
                );
                assert_eq!(of_batch.is_err(), row == 2 || row == count - 1, "bad rows fail alone");
                let token = of_batch.as_ref().map_or(1, |draw| draw.token);
                history.push(token);
                together[row].1.push(token);
            }
        }
    }
}

/// With many logits, several threads draw if the machine has them.
#[test]
fn rows_that_threads_share_give_the_tokens_of_one() {
    let _turn = device();
    let width = 1 << 15;
    let many = || (0..4).flat_map(|_| samplers()).collect::<Vec<_>>();
    let (mut together, mut alone) = (many(), many());
    let value = |index: usize| ((index * 7919 % 100_003) as f32 / 1000.0).sin() * 6.0;
    let mut values: Vec<f32> = (0..together.len() * width).map(value).collect();
    values[5 * width + 9] = f32::NAN;
    let array = Array::from_slice(&values, &[together.len() as i32, width as i32]);
    let (batch, mut scratch) = (Rows::new(&array).expect("a cast"), Scratch::default());
    for step in 0..3 {
        let request = |(row, (sampler, history))| DrawRequest { row, sampler, history };
        let mut company: Vec<_> = together
            .iter_mut()
            .map(|(sampler, history)| (sampler, &*history))
            .enumerate()
            .map(request)
            .collect();
        let drawn = Sampler::draw(&batch, &mut company, &mut scratch).expect("the rows can be read");
        for (row, of_batch) in drawn.iter().enumerate() {
            let (sampler, history) = &mut alone[row];
            let values = &values[row * width..(row + 1) * width];
            let of_one = sampler.draw_row(values, history, &mut Scratch::default());
            assert!(same(of_batch, &of_one), "step {step}, row {row}: {of_batch:?} and {of_one:?}");
            let token = of_batch.as_ref().map_or(1, |draw| draw.token);
            history.push(token);
            together[row].1.push(token);
        }
    }
}

/// A step with log-probabilities stores only the requested values, not the row.
#[test]
fn log_probabilities_keep_no_row() {
    let bytes_kept = |width: usize| {
        let row: Vec<f32> = (0..width).map(|id| (id as f32).sin()).collect();
        let mut scratch = Scratch::default();
        score(&row, 3, 20, &mut scratch).expect("a row");
        let mut results = Vec::with_capacity(50);
        let counted = allocation_counter::measure(|| {
            results.extend((0..50).map(|token| score(&row, token, 20, &mut scratch).expect("a row")));
        });
        counted.bytes_current
    };
    assert_eq!(bytes_kept(1_000), bytes_kept(60_000));
    assert!(bytes_kept(1_000) <= 50 * 20 * 8);
}
