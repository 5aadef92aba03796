//! Sampling. Invariant: [`Sampler::draw`] is the only place where a token is drawn, for every front end.

mod filters;
mod history;
mod noise;
mod params;

use mlx_rs::Array;

pub use history::{Cursor, Since, TokenHistory};
pub use noise::{Stream, uniform};
pub use params::{MAX_TOP_LOGPROBS, SamplingOptions, SamplingParams};

use crate::array;
use crate::error::{Error, Result};
use filters::Candidate;

/// The sampler of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    /// How many alternatives to report with each token; `None` reports no log-probabilities at all.
    logprobs: Option<usize>,
}

/// A token that was drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// The token.
    pub token: u32,
    /// Its log-probability under the raw model row, if the request asked for log-probabilities.
    pub logprob: Option<f32>,
    /// The likeliest tokens of the raw model row with their log-probabilities, in falling order.
    pub top: Vec<(u32, f32)>,
}

/// Buffers that draws share, so that a step allocates nothing that depends on the vocabulary.
#[derive(Debug, Default)]
pub struct Scratch {
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler for one sequence; `logprobs` is at most [`MAX_TOP_LOGPROBS`].
    pub fn new(params: SamplingParams, logprobs: Option<usize>) -> Self {
        Self { params, logprobs }
    }

    /// Draws a token for every row of `logits` `[B, V]`: row `i` by `rows[i]`, its sampler and the history it
    /// continues. One host read for all rows; each row's outcome is its own, and a row that cannot be drawn
    /// from (a NaN, nothing but minus infinity) fails alone.
    pub fn draw(
        logits: &Array,
        rows: &[(&Sampler, &TokenHistory)],
        scratch: &mut Scratch,
    ) -> Result<Vec<Result<Draw>>> {
        let single = array::to_single(logits)?;
        let width = single.dim(-1) as usize;
        let values = array::values(&single)?;
        let draw = |(row, (sampler, history)): (&[f32], &(&Self, &TokenHistory))| {
            sampler.draw_row(row, history.len() as u64, &mut *scratch)
        };
        Ok(values.chunks_exact(width).zip(rows).map(draw).collect())
    }

    fn draw_row(&self, row: &[f32], position: u64, scratch: &mut Scratch) -> Result<Draw> {
        check_row(row)?;
        let token = if self.params.temperature == 0.0 {
            filters::argmax(row)
        } else {
            let candidates = &mut scratch.candidates;
            candidates.clear();
            candidates.extend((0..).zip(row).map(|(id, &logit)| Candidate { id, logit }));
            filters::top_k(candidates, self.params.top_k as usize);
            filters::top_p(candidates, self.params.top_p);
            filters::min_p(candidates, self.params.min_p);
            let uniform = uniform(self.params.seed, position, Stream::Draw);
            filters::draw(candidates, self.params.temperature, uniform)
        };
        let Some(count) = self.logprobs else { return Ok(Draw { token, logprob: None, top: Vec::new() }) };
        let normaliser = filters::log_sum_exp(row);
        let logprob = |id: u32| (f64::from(row[id as usize]) - normaliser) as f32;
        let top = likeliest(row, count, scratch).map(|id| (id, logprob(id))).collect();
        Ok(Draw { token, logprob: Some(logprob(token)), top })
    }
}

/// The ids of the `count` likeliest tokens, in falling order.
fn likeliest<'a>(row: &[f32], count: usize, scratch: &'a mut Scratch) -> impl Iterator<Item = u32> + 'a {
    scratch.candidates.clear();
    if count > 0 {
        scratch.candidates.extend((0..).zip(row).map(|(id, &logit)| Candidate { id, logit }));
        filters::keep_likeliest(&mut scratch.candidates, count);
    }
    scratch.candidates.iter().map(|candidate| candidate.id)
}

/// A row that holds no distribution is an error, never a random token.
fn check_row(row: &[f32]) -> Result<()> {
    let mut finite = false;
    for &logit in row {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(Error::Mlx(format!("the model gave a logit of {logit}")));
        }
        finite |= logit > f32::NEG_INFINITY;
    }
    if finite { Ok(()) } else { Err(Error::Mlx("the model gave no token any probability".into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(options: &SamplingOptions, logprobs: Option<usize>) -> Sampler {
        let params = SamplingParams::resolve(options, &SamplingOptions::default()).expect("valid options");
        Sampler::new(params, logprobs)
    }

    #[test]
    fn a_seeded_draw_depends_on_seed_and_position_only() {
        let row: Vec<f32> = (0..50).map(|id| (id as f32 * 0.7).sin()).collect();
        let seeded = sampler(&SamplingOptions { seed: Some(3), ..Default::default() }, None);
        let drawn =
            |position| seeded.draw_row(&row, position, &mut Scratch::default()).expect("a draw").token;
        let forward: Vec<u32> = (0..40).map(drawn).collect();
        let backward: Vec<u32> = (0..40).rev().map(drawn).collect();
        assert_eq!(forward, backward.into_iter().rev().collect::<Vec<_>>());
        assert!(forward.iter().any(|&token| token != forward[0]));
    }

    #[test]
    fn logprobs_are_those_of_the_raw_row() {
        let row = [0.0, (3.0f32).ln(), f32::NEG_INFINITY];
        let options = SamplingOptions { temperature: Some(0.0), ..Default::default() };
        let draw = sampler(&options, Some(2)).draw_row(&row, 0, &mut Scratch::default()).expect("a draw");
        assert_eq!(draw.token, 1);
        assert!((draw.logprob.expect("asked for") - 0.75f32.ln()).abs() < 1e-6);
        assert_eq!(draw.top.iter().map(|top| top.0).collect::<Vec<_>>(), [1, 0]);
        assert!((draw.top[1].1 - 0.25f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn rows_without_a_distribution_are_errors() {
        let greedy = sampler(&SamplingOptions { temperature: Some(0.0), ..Default::default() }, None);
        for row in [[f32::NAN, 1.0], [f32::INFINITY, 1.0], [f32::NEG_INFINITY, f32::NEG_INFINITY]] {
            assert!(greedy.draw_row(&row, 0, &mut Scratch::default()).is_err(), "{row:?}");
        }
    }

    /// Pearson's statistic of 100 000 draws over six tokens, under the 99.99 % point of chi-square with 5 degrees.
    #[test]
    fn draws_follow_the_softmax() {
        let row = [0.3f32, -1.0, 1.2, 0.0, 2.0, -0.5];
        let temperature = 0.8;
        let options =
            SamplingOptions { temperature: Some(temperature), seed: Some(11), ..Default::default() };
        let sampler = sampler(&options, None);
        let (mut counts, mut scratch, draws) = ([0u32; 6], Scratch::default(), 100_000);
        for position in 0..draws {
            counts[sampler.draw_row(&row, position, &mut scratch).expect("a draw").token as usize] += 1;
        }
        let weights = row.map(|logit| f64::from(logit / temperature).exp());
        let total: f64 = weights.iter().sum();
        let statistic: f64 = counts
            .iter()
            .zip(weights)
            .map(|(&count, weight)| {
                let expected = draws as f64 * weight / total;
                (f64::from(count) - expected).powi(2) / expected
            })
            .sum();
        assert!(statistic < 25.7, "chi-square {statistic}");
    }
}
