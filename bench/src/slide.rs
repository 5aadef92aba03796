//! Measures the quality of text after many context shifts: `slide MODEL`. Compares its perplexity, under the model with a fresh full context,
//! with that of text restarted from its last tokens whenever the context is full, and that of the first context, before any shift.

use mlx_core::Result;
use mlx_core::engine::{Engine, EngineOptions, Event, RequestOptions, Task};
use mlx_core::sampling::SamplingOptions;

use crate::figures::Figures;
use crate::load::{argument, engine_options};

const CONTEXTS: usize = 20;
const SEED: u64 = 0;
/// The number of leading tokens that stay.
const KEPT: usize = 4;
/// The number of tokens that a restarted text begins with.
const REST: usize = 16;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let folder: String = argument(arguments, 0, "MODEL")?;
    let options = EngineOptions { max_running: 1, ..engine_options() };
    let engine = Engine::start(folder.as_ref(), &options, |_, _| {})?;
    let context = engine.spec().context_length;
    let begin = engine.folder().tokenizer.encode("", true)?;
    let begin = if begin.is_empty() { vec![0] } else { begin };
    let text = generate(&engine, &begin, CONTEXTS * context, SEED, Some(KEPT))?;
    let anew = restarted(&engine, &begin)?;
    let mut figures = Figures::default();
    for (name, text) in [
        ("first context, from which nothing was dropped", &text[..context - begin.len()]),
        ("slid through all of it", &text[context..]),
        ("begun anew whenever the context was full", &anew[context..]),
    ] {
        let scores = scores(&engine, &begin, text)?;
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        figures.add(format!("{name}, perplexity of {} tokens", scores.len()), (-mean).exp());
    }
    Ok(figures)
}

/// Returns a text that restarts from its last tokens whenever the context is full.
fn restarted(engine: &Engine, begin: &[u32]) -> Result<Vec<u32>> {
    let context = engine.spec().context_length;
    let mut text = Vec::new();
    while text.len() < CONTEXTS * context {
        let rest = &text[text.len().saturating_sub(REST)..];
        let prompt = [begin, rest].concat();
        text.extend(generate(
            engine,
            &prompt,
            context - prompt.len(),
            SEED + 1000 * text.len() as u64,
            None,
        )?);
    }
    Ok(text)
}

fn generate(
    engine: &Engine,
    prompt: &[u32],
    tokens: usize,
    seed: u64,
    slide: Option<usize>,
) -> Result<Vec<u32>> {
    let options = RequestOptions {
        sampling: SamplingOptions { temperature: Some(0.8), seed: Some(seed), ..SamplingOptions::default() },
        max_tokens: Some(tokens),
        ignore_eos: true,
        n_keep: slide,
        ..RequestOptions::default()
    };
    let events = engine.submit(engine.request(prompt.to_vec(), &options)?)?;
    Ok(events
        .filter_map(|event| if let Event::Token(token) = event { Some(token.id) } else { None })
        .collect())
}

/// Returns log-probabilities of the second half of each context of a text, after a fresh first half.
fn scores(engine: &Engine, begin: &[u32], text: &[u32]) -> Result<Vec<f64>> {
    let whole = engine.spec().context_length - begin.len();
    let options = RequestOptions { task: Task::Score, ..RequestOptions::default() };
    let mut scores = Vec::new();
    for window in text.chunks_exact(whole) {
        let events = engine.submit(engine.request([begin, window].concat(), &options)?)?;
        let logprobs = events.filter_map(|event| match event {
            Event::Prompt(token) => Some(token.logprob.map_or(0.0, |it| f64::from(it.logprob))),
            _ => None,
        });
        scores.extend(logprobs.skip(begin.len() + whole / 2));
    }
    Ok(scores)
}
