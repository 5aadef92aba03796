//! Measures one stream: `single MODEL`. The rates of prefill and decode.

use std::time::Instant;

use mlx_core::Result;
use mlx_core::engine::Engine;

use crate::figures::{Figures, median};
use crate::load::{argument, engine, milliseconds, moments_of, submit};

const PROMPT: usize = 512;
const TOKENS: usize = 128;
/// Tokens before the measured ones, so that decoding starts with a short context.
const BEFORE: usize = 32;
const TIMES: usize = 3;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    figures(&engine(&argument::<String>(arguments, 0, "MODEL")?)?)
}

/// Measures an engine that has just started.
pub(crate) fn figures(engine: &Engine) -> Result<Figures> {
    moments_of(8, submit(engine, 0, BEFORE, 8)?)?;
    let (mut prompts, mut answers) = (Vec::new(), Vec::new());
    for turn in 0..TIMES {
        let begin = Instant::now();
        let first = moments_of(1, submit(engine, 1 + turn, PROMPT, 1)?)?[0];
        prompts.push(PROMPT as f64 * 1e3 / milliseconds(begin, first));
        let times = moments_of(TOKENS + 1, submit(engine, 100 + turn, BEFORE, TOKENS + 1)?)?;
        answers.push(TOKENS as f64 * 1e3 / milliseconds(times[0], times[TOKENS]));
    }
    let mut figures = Figures::default();
    figures.add(format!("prompt of {PROMPT}, tok/s"), median(&prompts));
    figures.add(format!("answer of {TOKENS}, tok/s"), median(&answers));
    Ok(figures)
}
