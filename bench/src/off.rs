//! What a feature costs whoever does not use it: `off MODEL`. The medians of many short runs by turns, with the feature there but unused
//! and with it taken out as far as it can be; and, for what is part of every draw, the draw beside the bare search for the largest.

use std::hint::black_box;

use mlx_core::Result;
use mlx_core::engine::{EngineHandle, EngineOptions, RequestOptions};
use mlx_core::sampling::{PenaltyOptions, SamplingOptions};

use crate::figures::{Figures, median};
use crate::load::{argument, engine_with, greedy, milliseconds, moments, prompt};
use crate::sampling::{draws, microseconds, options, row};

const TURNS: usize = 40;
const PROMPT: usize = 32;
const TOKENS: usize = 48;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let model: String = argument(arguments, 0, "MODEL")?;
    let start = |options: &EngineOptions| engine_with(&model, options);
    let bare = EngineOptions { prefix_cache: Some(0), exact: Some(false), ..EngineOptions::default() };
    let plain = start(&bare)?;
    let again = start(&bare)?;
    let exact = start(&EngineOptions { exact: Some(true), ..bare.clone() })?;
    let keeping = start(&EngineOptions { prefix_cache: None, ..bare })?;
    let request = greedy(TOKENS);
    let neutral = RequestOptions {
        sampling: SamplingOptions {
            penalties: PenaltyOptions {
                repetition: Some(1.0),
                frequency: Some(0.0),
                presence: Some(0.0),
                ..PenaltyOptions::default()
            },
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
    let mut figures = Figures::default();
    for (name, engine, options) in rivals {
        let (with, without) = by_turns((engine, options), (&plain, &request))?;
        figures.add(format!("a token, {name} / without"), with / without);
    }
    let width = plain.spec().vocabulary;
    let (draw, largest) = (draws(width, &options(0.0))?, search(width)?);
    let step =
        median(&(0..TURNS).map(|turn| token_time(&plain, &request, turn)).collect::<Result<Vec<_>>>()?);
    figures.add("a greedy draw with all features off, µs", draw);
    figures.add("the bare search for the largest, µs", largest);
    figures.add("all that is off in a draw / a step", (draw - largest) / (step * 1e3));
    Ok(figures)
}

type Rival<'a> = (&'a EngineHandle, &'a RequestOptions);

/// The medians of both; who goes first changes with every turn.
fn by_turns(with: Rival, without: Rival) -> Result<(f64, f64)> {
    let (mut times, mut others) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let (first, second) = if turn % 2 == 0 { (with, without) } else { (without, with) };
        let (one, two) = (token_time(first.0, first.1, turn)?, token_time(second.0, second.1, turn)?);
        let (with, without) = if turn % 2 == 0 { (one, two) } else { (two, one) };
        times.push(with);
        others.push(without);
    }
    Ok((median(&times), median(&others)))
}

/// Milliseconds of a token, the median of a run. No two turns share a beginning.
fn token_time(engine: &EngineHandle, options: &RequestOptions, turn: usize) -> Result<f64> {
    let prompt = prompt(turn + 1, PROMPT, engine.spec().vocabulary);
    let times = moments(engine.submit(engine.request(prompt, options)?)?);
    let gaps: Vec<f64> = times.windows(2).map(|pair| milliseconds(pair[0], pair[1])).collect();
    Ok(median(&gaps))
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
