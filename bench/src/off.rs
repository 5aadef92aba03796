//! Measures what a feature costs requests that do not use it: `off MODEL TOY`. A token of the toy model is mostly host work. The time that a
//! feature adds to it, compared with alternating runs without it, is divided by the time of a token of the model. Features that are part of
//! every draw are measured by comparing a draw with a bare argmax.

use std::hint::black_box;

use mlx_core::Result;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions};
use mlx_core::sampling::SamplingOptions;

use crate::figures::{Figures, median};
use crate::load::{argument, engine_options, engine_with, greedy, milliseconds, moments_of, prompt};
use crate::sampling::{draws, microseconds, options, row};

const TURNS: usize = 200;
/// Runs of the model that provides the reference time.
const MODEL_TURNS: usize = 20;
const PROMPT: usize = 32;
const TOKENS: usize = 48;
/// The width of the row of logits to draw from.
const WIDTH: usize = 32_000;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let (model, toy): (String, String) = (argument(arguments, 0, "MODEL")?, argument(arguments, 1, "TOY")?);
    let start = |options: &EngineOptions| engine_with(&toy, options);
    let bare = EngineOptions { exact: false, ..engine_options() };
    let plain = start(&bare)?;
    let again = start(&bare)?;
    let exact = start(&EngineOptions { exact: true, ..bare.clone() })?;
    let keeping = start(&EngineOptions { prefix_cache: None, ..bare })?;
    let request = greedy(TOKENS);
    let neutral = RequestOptions {
        sampling: SamplingOptions {
            repetition_penalty: Some(1.0),
            frequency_penalty: Some(0.0),
            presence_penalty: Some(0.0),
            ..request.sampling.clone()
        },
        ..request.clone()
    };
    let rivals = [
        ("nothing (the noise)", &again, &request),
        ("exact steps", &exact, &request),
        ("keeping beginnings", &keeping, &request),
        ("penalties that do nothing", &plain, &neutral),
    ];
    let step = step(&model, &request)?;
    let mut figures = Figures::default();
    figures.add("a token of the model, µs", step);
    for (name, engine, options) in rivals {
        let added = added((engine, options), (&plain, &request))?;
        figures.add(format!("{name}, µs more"), added);
        figures.add(format!("{name}, of a token"), added / step);
    }
    let (draw, largest) = (draws(WIDTH, &options(0.0))?, search(WIDTH)?);
    figures.add("a greedy draw with all features off, µs", draw);
    figures.add("the bare search for the largest, µs", largest);
    figures.add("all that is off in a draw, of a token", (draw - largest) / step);
    Ok(figures)
}

/// Returns the microseconds per token of `model`, the median of some runs.
fn step(model: &str, request: &RequestOptions) -> Result<f64> {
    let engine = engine_with(model, &engine_options())?;
    let times =
        (0..MODEL_TURNS).map(|turn| token_time(&engine, request, turn)).collect::<Result<Vec<_>>>()?;
    Ok(median(&times))
}

type Rival<'a> = (&'a Engine, &'a RequestOptions);

/// Returns the added microseconds per token: the median difference over turns with alternating order.
fn added(with: Rival, without: Rival) -> Result<f64> {
    let mut differences = Vec::new();
    for turn in 0..TURNS {
        let (first, second) = if turn % 2 == 0 { (with, without) } else { (without, with) };
        let (one, two) = (token_time(first.0, first.1, turn)?, token_time(second.0, second.1, turn)?);
        differences.push(if turn % 2 == 0 { one - two } else { two - one });
    }
    Ok(median(&differences))
}

/// Returns the microseconds per token of one run. No two turns share a prefix.
fn token_time(engine: &Engine, options: &RequestOptions, turn: usize) -> Result<f64> {
    let prompt = prompt(turn + 1, PROMPT, engine.spec().vocab_size);
    let times = moments_of(TOKENS, engine.submit(engine.request(prompt, options)?)?)?;
    Ok(milliseconds(times[0], times[TOKENS - 1]) * 1e3 / (TOKENS - 1) as f64)
}

fn search(width: usize) -> Result<f64> {
    let row = row(width);
    microseconds(300, || {
        let mut best = (0, f32::NEG_INFINITY);
        for (place, &value) in black_box(&row).iter().enumerate() {
            if value > best.1 {
                best = (place, value);
            }
        }
        black_box(best);
        Ok(())
    })
}
