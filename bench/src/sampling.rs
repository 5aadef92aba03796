//! Measures the time of a draw, by vocabulary and by filter: `sampling`. Microseconds.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use mlx_core::Result;
use mlx_core::array::Rows;
use mlx_core::sampling::{
    DrawRequest, Sampler, SamplingOptions, SamplingParams, Scratch, Stream, TokenHistory, TokenTable, uniform,
};
use mlx_rs::Array;

use crate::figures::{Figures, median};

pub(crate) const VOCABULARIES: [usize; 3] = [32_000, 151_936, 262_144];
const DRAWS: usize = 300;

pub(crate) fn measure(_: &[String]) -> Result<Figures> {
    let mut figures = Figures::default();
    for width in VOCABULARIES {
        for (name, options) in filters() {
            figures.add(format!("{name}, {width}, µs"), draws(width, &options)?);
        }
    }
    for (name, options) in filters() {
        figures.add(format!("{name}, 32 rows of 151936, µs"), draws_of_rows(32, &options)?);
    }
    figures.add("sixteen rows with three penalties each, 32000, µs", sixteen_rows()?);
    Ok(figures)
}

fn filters() -> [(&'static str, SamplingOptions); 7] {
    let warm = || options(0.8);
    [
        ("greedy", options(0.0)),
        ("temperature", warm()),
        ("top-k 40", SamplingOptions { top_k: Some(40), ..warm() }),
        ("top-p 0.9", SamplingOptions { top_p: Some(0.9), ..warm() }),
        ("min-p 0.05", SamplingOptions { min_p: Some(0.05), ..warm() }),
        ("typical-p 0.9", SamplingOptions { typical_p: Some(0.9), ..warm() }),
        (
            "top-k, top-p, min-p",
            SamplingOptions { top_k: Some(40), top_p: Some(0.9), min_p: Some(0.05), ..warm() },
        ),
    ]
}

pub(crate) fn options(temperature: f32) -> SamplingOptions {
    SamplingOptions { temperature: Some(temperature), seed: Some(1), ..SamplingOptions::default() }
}

pub(crate) fn sampler(options: &SamplingOptions) -> Result<Sampler> {
    let params = SamplingParams::resolve(options, &SamplingOptions::default())?;
    let token_table = TokenTable { text: Arc::new(|id| id.to_le_bytes().to_vec()), protected: Arc::from([]) };
    Ok(Sampler::new(params, None, &token_table))
}

/// Returns a row with the distribution of a model's logits: normal, with a standard deviation of 2.8.
pub(crate) fn row(width: usize) -> Vec<f32> {
    let normal = |place: usize| {
        let sum: f64 = (0..12).map(|part| uniform(part, place as u64, Stream::Draw)).sum();
        ((sum - 6.0) * 2.8) as f32
    };
    (0..width).map(normal).collect()
}

/// Returns a history of `length` tokens with some repetition, like text.
pub(crate) fn history(length: usize, width: usize) -> TokenHistory {
    let mut history = TokenHistory::new(Vec::new());
    (0..length).for_each(|place| history.push(token(place, width)));
    history
}

pub(crate) fn token(place: usize, width: usize) -> u32 {
    let share = uniform(99, place as u64, Stream::Draw);
    // Few tokens are common and many are rare.
    (share.powi(4) * width as f64) as u32
}

/// Returns the median time of `run` in microseconds.
pub(crate) fn microseconds(times: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    let time = |_| {
        let begin = Instant::now();
        run()?;
        Ok(begin.elapsed().as_secs_f64() * 1e6)
    };
    Ok(median(&(0..times).map(time).collect::<Result<Vec<f64>>>()?))
}

pub(crate) fn draws(width: usize, options: &SamplingOptions) -> Result<f64> {
    let (row, mut sampler, mut scratch) = (row(width), sampler(options)?, Scratch::default());
    let history = history(100, width);
    microseconds(DRAWS, || {
        black_box(sampler.draw_row(black_box(&row), &history, &mut scratch)?);
        Ok(())
    })
}

/// Measures a draw from `count` rows at once, as in a step.
fn draws_of_rows(count: usize, options: &SamplingOptions) -> Result<f64> {
    let width = VOCABULARIES[1];
    let rows = Rows::new(&Array::from_slice(&row(width).repeat(count), &[count as i32, width as i32]))?;
    rows.wait()?;
    let mut samplers = (0..count).map(|_| sampler(options)).collect::<Result<Vec<_>>>()?;
    let (history, mut scratch) = (history(100, width), Scratch::default());
    microseconds(DRAWS / 10, || {
        let request = |(row, sampler)| DrawRequest { row, sampler, history: &history };
        let mut requests: Vec<DrawRequest> = samplers.iter_mut().enumerate().map(request).collect();
        black_box(Sampler::draw(&rows, &mut requests, &mut scratch)?);
        Ok(())
    })
}

fn sixteen_rows() -> Result<f64> {
    let options = SamplingOptions {
        repetition_penalty: Some(1.1),
        frequency_penalty: Some(0.2),
        presence_penalty: Some(0.2),
        penalty_last_n: Some(20),
        ..options(0.0)
    };
    let (row, mut scratch) = (row(32_000), Scratch::default());
    let row_of = |_| Ok((sampler(&options)?, history(500, 32_000)));
    let mut rows = (0..16).map(row_of).collect::<Result<Vec<_>>>()?;
    microseconds(DRAWS, || {
        for (sampler, history) in &mut rows {
            let token = sampler.draw_row(black_box(&row), history, &mut scratch)?.token;
            history.push(token);
        }
        Ok(())
    })
}
