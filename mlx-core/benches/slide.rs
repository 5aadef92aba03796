//! How well a text goes on after it has slid through many contexts: `cargo bench --bench slide -- FOLDER`. Its perplexity under the model
//! with a fresh, full context, beside that of text that begins anew from its last tokens whenever the context is full, and that of
//! the first context, which nothing was dropped from.

use mlx_core::Result;
use mlx_core::engine::{EngineHandle, EngineOptions, Event, RequestOptions};
use mlx_core::sampling::SamplingOptions;

const CONTEXTS: usize = 20;
const SEEDS: u64 = 1;
/// First tokens that stay.
const KEPT: usize = 4;
/// Tokens that a text which begins anew begins with.
const REST: usize = 16;

#[expect(clippy::print_stdout, reason = "this is what a bench is for")]
fn main() -> Result<()> {
    let Some(folder) = std::env::args().skip(1).find(|it| !it.starts_with("--")) else {
        println!("cargo bench --bench slide -- FOLDER");
        return Ok(());
    };
    let options = EngineOptions { prefix_cache: Some(0), ..EngineOptions::single() };
    let engine = EngineHandle::start(folder.as_ref(), &options, |_, _| {})?;
    let context = engine.spec().context;
    let begin = engine.folder().tokenizer.encode("", true)?;
    let begin = if begin.is_empty() { vec![0] } else { begin };
    let (mut first, mut slid, mut cut) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..SEEDS {
        let text = generate(&engine, &begin, CONTEXTS * context, seed, Some(KEPT))?;
        first.extend(scores(&engine, &begin, &text[..context - begin.len()])?);
        slid.extend(scores(&engine, &begin, &text[context..])?);
        cut.extend(scores(&engine, &begin, &restarted(&engine, &begin, seed)?[context..])?);
    }
    println!(
        "perplexity of the second half of each context of text, {SEEDS} seed, {CONTEXTS} contexts of {context} tokens"
    );
    for (name, scores) in [("first context", first), ("slid", slid), ("begun anew", cut)] {
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        println!("{name}: {:.3} over {} tokens", (-mean).exp(), scores.len());
    }
    Ok(())
}

/// A text that begins anew from its last tokens whenever the context is full.
fn restarted(engine: &EngineHandle, begin: &[u32], seed: u64) -> Result<Vec<u32>> {
    let context = engine.spec().context;
    let mut text = Vec::new();
    while text.len() < CONTEXTS * context {
        let rest = &text[text.len().saturating_sub(REST)..];
        let prompt = [begin, rest].concat();
        text.extend(generate(
            engine,
            &prompt,
            context - prompt.len(),
            seed + 1000 * text.len() as u64,
            None,
        )?);
    }
    Ok(text)
}

fn generate(
    engine: &EngineHandle,
    prompt: &[u32],
    tokens: usize,
    seed: u64,
    slide: Option<usize>,
) -> Result<Vec<u32>> {
    let options = RequestOptions {
        sampling: SamplingOptions { temperature: Some(0.8), seed: Some(seed), ..SamplingOptions::default() },
        max_tokens: Some(tokens),
        ignore_eos: true,
        slide,
        ..RequestOptions::default()
    };
    let events = engine.submit(engine.request(prompt.to_vec(), &options)?)?;
    Ok(events
        .filter_map(|event| if let Event::Token(token) = event { Some(token.id) } else { None })
        .collect())
}

/// Log-probabilities of the second half of each context of a text, after a fresh first half.
fn scores(engine: &EngineHandle, begin: &[u32], text: &[u32]) -> Result<Vec<f64>> {
    let whole = engine.spec().context - begin.len();
    let options =
        RequestOptions { prompt_logprobs: Some(0), max_tokens: Some(0), ..RequestOptions::default() };
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
