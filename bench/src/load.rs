//! The measured requests: synthetic prompts without common prefixes, and greedy answers of a given length.

use std::num::NonZeroUsize;
use std::path::Path;
use std::str::FromStr;
use std::time::Instant;

use mlx_core::engine::{Engine, EngineOptions, Event, FinishReason, Generation, RequestOptions, Speculate};
use mlx_core::sampling::SamplingOptions;
use mlx_core::{Error, Result};

/// Parses the argument at index `place`, called `name`.
pub(crate) fn argument<T: FromStr>(arguments: &[String], place: usize, name: &'static str) -> Result<T> {
    let text = arguments.get(place).ok_or_else(|| Error::request(name, "is missing"))?;
    text.parse().map_err(|_| Error::request(name, format!("cannot be {text:?}")))
}

/// Parses an argument like `1,4,8` into positive numbers.
pub(crate) fn numbers(arguments: &[String], place: usize, name: &'static str) -> Result<Vec<usize>> {
    let text: String = argument(arguments, place, name)?;
    let number = |part: &str| part.parse::<NonZeroUsize>().map(NonZeroUsize::get);
    let failed =
        |_| Error::request(name, format!("cannot be {text:?}; whole numbers from 1 on, such as 1,4,8"));
    text.split(',').map(|part| number(part).map_err(failed)).collect()
}

/// Starts an engine with default options, but without a prefix cache.
pub(crate) fn engine(model: &str) -> Result<Engine> {
    engine_with(model, &engine_options())
}

/// Default options without a prefix cache and without drafts. Answers to synthetic prompts often repeat themselves, so drafts would look
/// unrealistically fast.
pub(crate) fn engine_options() -> EngineOptions {
    EngineOptions { prefix_cache: Some(0), speculate: Speculate::Off, ..EngineOptions::default() }
}

pub(crate) fn engine_with(model: &str, options: &EngineOptions) -> Result<Engine> {
    Engine::start(Path::new(model), options, |_, _| {})
}

/// Returns the tokens of a prompt. The first token depends on `sequence`. The programs in bench/peers produce the same prompts.
pub(crate) fn prompt(sequence: usize, length: usize, vocabulary: usize) -> Vec<u32> {
    let token = |place: usize| ((place * 7919 + sequence * 104_729 + 11) % (vocabulary - 10) + 5) as u32;
    (0..length).map(token).collect()
}

pub(crate) fn greedy(tokens: usize) -> RequestOptions {
    RequestOptions {
        sampling: SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() },
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..RequestOptions::default()
    }
}

/// Requests `tokens` greedy tokens after a prompt of `length`.
pub(crate) fn submit(engine: &Engine, sequence: usize, length: usize, tokens: usize) -> Result<Generation> {
    let prompt = prompt(sequence, length, engine.spec().vocab_size);
    engine.submit(engine.request(prompt, &greedy(tokens))?)
}

/// Returns the arrival times of tokens, or the reason for a failure. A canceled request returns the times so far.
pub(crate) fn moments(generation: Generation) -> Result<Vec<Instant>> {
    let mut times = Vec::new();
    for event in generation {
        match event {
            Event::Token(_) => times.push(Instant::now()),
            Event::Done(end) => {
                if let FinishReason::Error(why) = end.reason {
                    return Err(Error::request("a measured request", format!("failed: {why}")));
                }
            }
            _ => {}
        }
    }
    Ok(times)
}

/// Like [`moments`], but fails unless the answer has exactly this number of tokens.
pub(crate) fn moments_of(tokens: usize, generation: Generation) -> Result<Vec<Instant>> {
    let times = moments(generation)?;
    if times.len() == tokens {
        return Ok(times);
    }
    let message = format!("gave {} of {tokens} tokens; the context is too short for it", times.len());
    Err(Error::request("a measured request", message))
}

pub(crate) fn milliseconds(begin: Instant, end: Instant) -> f64 {
    end.duration_since(begin).as_secs_f64() * 1e3
}
