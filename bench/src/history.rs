//! Measures the cost of penalties by history length: `history`. Microseconds per step, which appends one token and draws the next one greedily.
//! The penalty window is the whole history.

use std::hint::black_box;

use mlx_core::Result;
use mlx_core::sampling::{SamplingOptions, Scratch};

use crate::figures::Figures;
use crate::sampling::{VOCABULARIES, history, microseconds, options, row, sampler, token};

const LENGTHS: [usize; 3] = [1_000, 8_000, 64_000];
const STEPS: usize = 100;
const FIRSTS: usize = 15;
/// Tokens removed by a rollback: the maximum length of a draft.
const ROLLBACK: usize = 8;

pub(crate) fn measure(_: &[String]) -> Result<Figures> {
    let mut figures = Figures::default();
    for width in VOCABULARIES {
        for length in LENGTHS {
            for (name, options) in penalties() {
                let name = format!("{name}, vocabulary {width}, history {length}, µs");
                figures.add(name, step(length, width, &options)?);
            }
            let name = format!("all, rollback by {ROLLBACK}, vocabulary {width}, history {length}, µs");
            figures.add(name, rollback(length, width)?);
            let name = format!("all, first draw, vocabulary {width}, history {length}, µs");
            figures.add(name, first(length, width)?);
        }
    }
    Ok(figures)
}

fn penalties() -> [(&'static str, SamplingOptions); 5] {
    let counted =
        SamplingOptions { frequency_penalty: Some(0.2), presence_penalty: Some(0.2), ..options(0.0) };
    [
        ("none", options(0.0)),
        ("repetition", SamplingOptions { repetition_penalty: Some(1.1), ..options(0.0) }),
        ("frequency and presence", counted),
        ("DRY", SamplingOptions { dry_multiplier: Some(0.8), ..options(0.0) }),
        ("all", all()),
    ]
}

fn all() -> SamplingOptions {
    SamplingOptions {
        repetition_penalty: Some(1.1),
        frequency_penalty: Some(0.2),
        presence_penalty: Some(0.2),
        dry_multiplier: Some(0.8),
        ..options(0.0)
    }
}

fn step(length: usize, width: usize, options: &SamplingOptions) -> Result<f64> {
    let (row, mut sampler, mut scratch) = (row(width), sampler(options)?, Scratch::default());
    let mut history = history(length, width);
    microseconds(STEPS, || {
        history.push(token(history.len(), width));
        black_box(sampler.draw_row(black_box(&row), &history, &mut scratch)?);
        Ok(())
    })
}

/// Measures a rollback, appending the removed tokens again, and a draw.
fn rollback(length: usize, width: usize) -> Result<f64> {
    let (row, mut sampler, mut scratch) = (row(width), sampler(&all())?, Scratch::default());
    let mut history = history(length, width);
    microseconds(STEPS, || {
        history.truncate(length - ROLLBACK);
        (length - ROLLBACK..length).for_each(|place| history.push(token(place, width)));
        black_box(sampler.draw_row(black_box(&row), &history, &mut scratch)?);
        Ok(())
    })
}

/// Measures the first draw with a history of this length, which counts all its tokens.
fn first(length: usize, width: usize) -> Result<f64> {
    let (row, mut scratch) = (row(width), Scratch::default());
    let history = history(length, width);
    microseconds(FIRSTS, || {
        black_box(sampler(&all())?.draw_row(black_box(&row), &history, &mut scratch)?);
        Ok(())
    })
}
