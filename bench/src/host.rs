//! Measures the host's share of the time per token: `host MODEL`. On a toy model this is nearly all of it, and on a GPU it remains visible.
//! Microseconds.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use mlx_core::Result;
use mlx_core::array::Rows;
use mlx_core::cache::Variant;
use mlx_core::engine::Engine;
use mlx_core::model::{self, Batch, Model};
use mlx_core::sampling::Scratch;
use mlx_core::weights::WeightPolicy;

use crate::figures::{Figures, median};
use crate::load::{argument, engine, milliseconds, moments_of, prompt, submit};
use crate::sampling::{history, options, sampler};

const TOKENS: usize = 100;
const TURNS: usize = 6;
const PROMPT: usize = 16;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let folder: String = argument(arguments, 0, "MODEL")?;
    let model = model::load(Path::new(&folder), WeightPolicy::for_device(false)?, &mut |_, _| {})?;
    let engine = engine(&folder)?;
    let (mut least, mut steps) = (Parts::default(), Vec::new());
    // Alternating, so that both run under the same machine load.
    for turn in 0..TURNS {
        steps.extend(engine_gaps(&engine, turn)?);
        least.run(model.as_ref())?;
    }
    let mut figures = Figures::default();
    let step = median(&steps);
    figures.add("a token of the engine, µs", step);
    for (name, times) in [
        ("building the graph", &least.build),
        ("handing it over", &least.start),
        ("waiting", &least.wait),
        ("drawing", &least.draw),
    ] {
        figures.add(format!("the least a step needs: {name}, µs"), median(times));
    }
    figures.add("all else of the engine, µs", step - median(&least.whole));
    figures.add("of that, detokenizing, µs", detokenizing(&engine));
    Ok(figures)
}

/// Returns the microseconds between the tokens of one stream.
fn engine_gaps(engine: &Engine, sequence: usize) -> Result<Vec<f64>> {
    let times = moments_of(TOKENS, submit(engine, sequence, PROMPT, TOKENS)?)?;
    Ok(times.windows(2).map(|pair| microseconds(pair[0], pair[1])).collect())
}

fn detokenizing(engine: &Engine) -> f64 {
    let mut follower = engine.folder().tokenizer.detokenizer(true);
    let ids = prompt(3, TOKENS, engine.spec().vocab_size);
    let begin = Instant::now();
    for &id in &ids {
        black_box(follower.push(id));
    }
    microseconds(begin, Instant::now()) / TOKENS as f64
}

fn microseconds(begin: Instant, end: Instant) -> f64 {
    milliseconds(begin, end) * 1e3
}

/// Microseconds of the phases of minimal steps, which only compute a row and draw from it.
#[derive(Default)]
struct Parts {
    build: Vec<f64>,
    start: Vec<f64>,
    wait: Vec<f64>,
    draw: Vec<f64>,
    whole: Vec<f64>,
}

impl Parts {
    fn run(&mut self, model: &dyn Model) -> Result<()> {
        let (mut cache, mut scratch) = (model.new_state(Variant::default()), Scratch::default());
        let (mut sampler, history) = (sampler(&options(0.0))?, history(1, 2));
        let mut token = 7;
        for position in 0..PROMPT + TOKENS {
            let begin = Instant::now();
            let hidden = model.forward(Batch::decode(&[(token, position)]), &mut [&mut cache])?;
            let rows = Rows::new(&model.logits(&hidden)?)?;
            let built = Instant::now();
            rows.start()?;
            let started = Instant::now();
            rows.wait()?;
            let there = Instant::now();
            token = sampler.draw_row(rows.values()?, &history, &mut scratch)?.token;
            let end = Instant::now();
            if position >= PROMPT {
                self.build.push(microseconds(begin, built));
                self.start.push(microseconds(built, started));
                self.wait.push(microseconds(started, there));
                self.draw.push(microseconds(there, end));
                self.whole.push(microseconds(begin, end));
            }
        }
        Ok(())
    }
}
