//! The measured requests: synthetic prompts without common prefixes, greedy answers of a given length.

use std::num::NonZeroUsize;
use std::path::Path;
use std::str::FromStr;
use std::time::Instant;

use mlx_core::engine::{Engine, EngineOptions, Event, FinishReason, Generation, RequestOptions, Speculate};
use mlx_core::sampling::SamplingOptions;
use mlx_core::{Error, Result};

/// The argument at `place`, which is called `name`.
pub(crate) fn argument<T: FromStr>(arguments: &[String], place: usize, name: &'static str) -> Result<T> {
    let text = arguments.get(place).ok_or_else(|| Error::request(name, "is missing"))?;
    text.parse().map_err(|_| Error::request(name, format!("cannot be {text:?}")))
}

/// The numbers of an argument like `1,4,8`, none of them 0.
pub(crate) fn numbers(arguments: &[String], place: usize, name: &'static str) -> Result<Vec<usize>> {
    let text: String = argument(arguments, place, name)?;
    let number = |part: &str| part.parse::<NonZeroUsize>().map(NonZeroUsize::get);
    let failed =
        |_| Error::request(name, format!("cannot be {text:?}; whole numbers from 1 on, such as 1,4,8"));
    text.split(',').map(|part| number(part).map_err(failed)).collect()
}

/// An engine with default options, but without a prefix cache.
pub(crate) fn engine(model: &str) -> Result<Engine> {
    engine_with(model, &engine_options())
}

/// Default options, but without a prefix cache and without drafts: answers to made-up prompts often repeat themselves, which drafts would
/// make look fast.
pub(crate) fn engine_options() -> EngineOptions {
    EngineOptions { prefix_cache: Some(0), speculate: Speculate::Off, ..EngineOptions::default() }
}

pub(crate) fn engine_with(model: &str, options: &EngineOptions) -> Result<Engine> {
    Engine::start(Path::new(model), options, |_, _| {})
}

/// Tokens of a prompt. The first one differs in every `sequence`. The peers' programs make the same ones.
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

/// The times at which tokens arrived, or why the request failed. What is cancelled has those of before.
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

/// The same of an answer that must have this number of tokens.
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
