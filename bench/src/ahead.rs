//! Measures the time of a decode step on a device that runs concurrently with the host: `ahead MODEL ROWS POSITION SAMPLING PIPELINE TOKENS`.
//! SAMPLING is greedy, random or penalized; PIPELINE is auto or off. bench/ahead.py turns the CPU into such a device.

use std::thread;
use std::time::Instant;

use mlx_core::backend::Backend;
use mlx_core::engine::{EngineOptions, Event, Generation, Pipeline, RequestOptions};
use mlx_core::sampling::SamplingOptions;
use mlx_core::{Error, Result};

use crate::figures::{Figures, median, percentile};
use crate::load::{argument, engine_options, engine_with, greedy, milliseconds, prompt};

/// Steps until all streams decode at a steady rate.
const FIRST: usize = 10;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let model: String = argument(arguments, 0, "MODEL")?;
    let rows: usize = argument(arguments, 1, "ROWS")?;
    let position: usize = argument(arguments, 2, "POSITION")?;
    let kind: String = argument(arguments, 3, "SAMPLING")?;
    let pipeline: Pipeline = argument(arguments, 4, "PIPELINE")?;
    let tokens: usize = argument(arguments, 5, "TOKENS")?;
    let backend = Backend { pipelined: true, lookahead: true, ..Backend::CPU };
    let options = EngineOptions { backend: Some(backend), pipeline, max_running: rows, ..engine_options() };
    let engine = engine_with(&model, &options)?;
    let request = RequestOptions { sampling: sampling(&kind)?, ..greedy(tokens) };
    let running = (0..rows).map(|row| {
        // Rows of equal length might share operations, depending on their time of arrival.
        let prompt = prompt(row, position + row, engine.spec().vocab_size);
        engine.submit(engine.request(prompt, &request)?)
    });
    let running = running.collect::<Result<Vec<Generation>>>()?;
    let streams: Vec<Vec<(u32, Instant)>> = thread::scope(|scope| {
        let threads: Vec<_> = running.into_iter().map(|it| scope.spawn(move || drawn(it))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a stream")).collect()
    });
    let gaps = gaps_of_all(&streams)?;
    let sum = streams.iter().flatten().fold(0u32, |sum, it| sum.wrapping_mul(31).wrapping_add(it.0));
    let mut figures = Figures::default();
    figures.add("step, ms", gaps.iter().sum::<f64>() / gaps.len() as f64);
    figures.add("step, ms, median", median(&gaps));
    figures.add("step, ms, tenth percentile", percentile(&gaps, 10));
    let stats = engine.stats();
    figures.add("steps ahead", (stats.steps_ahead - stats.steps_dropped) as f64);
    figures.add("dropped", stats.steps_dropped as f64);
    figures.add("hash of the tokens", f64::from(sum));
    Ok(figures)
}

/// Returns the times between the tokens of one stream in milliseconds, while all streams decode.
fn gaps_of_all(streams: &[Vec<(u32, Instant)>]) -> Result<Vec<f64>> {
    let begins = streams.iter().filter_map(|stream| stream.get(FIRST)).map(|it| it.1).max();
    let ends = streams.iter().filter_map(|stream| stream.last()).map(|it| it.1).min();
    let (Some(begins), Some(ends)) = (begins, ends) else {
        return Err(Error::request("TOKENS", "are too few"));
    };
    let together = streams[0].windows(2).filter(|pair| begins <= pair[0].1 && pair[1].1 <= ends);
    let gaps: Vec<f64> = together.map(|pair| milliseconds(pair[0].1, pair[1].1)).collect();
    if gaps.len() < FIRST {
        return Err(Error::request("TOKENS", "are too few: the first stream ends before the last begins"));
    }
    Ok(gaps)
}

fn sampling(kind: &str) -> Result<SamplingOptions> {
    let with =
        |temperature| SamplingOptions { temperature: Some(temperature), seed: Some(1), ..Default::default() };
    Ok(match kind {
        "greedy" => with(0.0),
        "random" => SamplingOptions { top_k: Some(0), top_p: Some(1.0), min_p: Some(0.05), ..with(0.8) },
        "penalized" => SamplingOptions { repetition_penalty: Some(1.1), ..with(0.0) },
        _ => return Err(Error::request("SAMPLING", "must be greedy, random or penalized")),
    })
}

/// Returns the tokens of a stream and their arrival times.
fn drawn(generation: Generation) -> Vec<(u32, Instant)> {
    let token = |event| match event {
        Event::Token(token) => Some((token.id, Instant::now())),
        _ => None,
    };
    generation.filter_map(token).collect()
}
