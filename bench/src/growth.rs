//! Measures how time and memory grow with the context: `growth MODEL LENGTH,...`. One stream after prompts of these lengths.

use mlx_core::Result;
use mlx_core::array;
use mlx_core::engine::{Engine, Event};

use crate::figures::Figures;
use crate::load::{argument, engine, moments, numbers, submit};

const TOKENS: usize = 64;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let engine = engine(&argument::<String>(arguments, 0, "MODEL")?)?;
    moments(submit(&engine, 0, 64, 8)?)?;
    let mut figures = Figures::default();
    for length in numbers(arguments, 1, "LENGTHS")? {
        array::reset_peak_memory()?;
        let before = array::active_memory()?;
        let (prompt, token) = times(&engine, length)?;
        let peak = array::peak_memory()?.saturating_sub(before);
        figures.add(format!("prompt of {length}, µs a token"), prompt * 1e6 / length as f64);
        figures.add(format!("a token after {length}, µs"), token * 1e6);
        figures.add(format!("memory of {length}, bytes a token"), peak as f64 / length as f64);
    }
    Ok(figures)
}

/// Returns the seconds of a prompt of `length`, and of one token after it.
fn times(engine: &Engine, length: usize) -> Result<(f64, f64)> {
    let mut times = (0.0, 0.0);
    for event in submit(engine, length, length, TOKENS + 1)? {
        if let Event::Done(end) = event {
            times = (end.timings.prefill, end.timings.decode / TOKENS as f64);
        }
    }
    Ok(times)
}
