//! `mlx doctor --report FILE`: measures a model on this machine and writes one file to attach to an issue. docs/on-a-mac.md explains it.

use std::path::Path;
use std::process::Command;

use mlx_core::engine::{
    Engine, EngineOptions, Event, FinishReason, Generation, Pipeline, RequestOptions, Speculate,
};
use mlx_core::machine;
use mlx_core::sampling::SamplingOptions;
use serde_json::{Value, json};

use crate::bench::{Case, Measurement, prompt, to_json};
use crate::exit_code::Failure;
use crate::terminal;

/// Requests that run one by one, and then all at once.
const REQUESTS: usize = 12;

/// Tokens of a prompt, and of an answer.
const PROMPT: usize = 128;
const ANSWER: usize = 64;

/// Measures the model in `folder`.
pub(super) fn measure(folder: &Path) -> Result<Value, Failure> {
    let plain = EngineOptions {
        speculate: Speculate::Off,
        prefix_cache: Some(0),
        max_running: 8,
        ..EngineOptions::default()
    };
    Ok(json!({
        "throughput": throughput(folder, &plain)?,
        "pipeline": [pipeline(folder, &plain, Pipeline::Auto)?, pipeline(folder, &plain, Pipeline::Off)?],
        "under_load": under_load(folder, &plain)?,
        "mlx_lm": mlx_lm(folder),
    }))
}

/// Measures prefill and decode with 1, 4 and 8 concurrent requests.
fn throughput(folder: &Path, options: &EngineOptions) -> Result<Vec<Value>, Failure> {
    terminal::status("measuring throughput");
    let engine = Engine::start(folder, options, |_, _| {})?;
    Measurement::run(&engine, case(&engine, 1), 1)?;
    let measured =
        [1, 4, 8].map(|batch| Measurement::run(&engine, case(&engine, batch), 3).map(|it| to_json(&it)));
    measured.into_iter().collect()
}

/// Measures answers one at a time, with or without pipelined steps. The difference is the idle time of the device.
fn pipeline(folder: &Path, options: &EngineOptions, pipeline: Pipeline) -> Result<Value, Failure> {
    terminal::status("measuring the gaps between steps");
    let engine = Engine::start(folder, &EngineOptions { pipeline, ..options.clone() }, |_, _| {})?;
    Measurement::run(&engine, case(&engine, 1), 1)?;
    let measured = to_json(&Measurement::run(&engine, case(&engine, 1), 3)?);
    let stats = engine.stats();
    Ok(json!({
        "pipeline": pipeline,
        "measured": measured,
        "steps_ahead": stats.steps_ahead,
        "steps_dropped": stats.steps_dropped,
    }))
}

fn case(engine: &Engine, batch: usize) -> Case {
    let context = engine.spec().context_length;
    Case { length: PROMPT.min(context / 2).max(1), batch, generate: ANSWER.min(context / 4).max(2) }
}

/// Checks that exact requests have the same bits alone and together. Memory is scarce, so that some are preempted.
fn under_load(folder: &Path, options: &EngineOptions) -> Result<Value, Failure> {
    terminal::status("comparing answers under load");
    let options = EngineOptions { exact: true, ..options.clone() };
    let engine = Engine::start(folder, &options, |_, _| {})?;
    let spec = engine.spec();
    let (vocabulary, longest) = (spec.vocab_size, spec.context_length / 2);
    let requests = || {
        (0..REQUESTS).map(|number| {
            let sampling = SamplingOptions {
                seed: Some(number as u64),
                temperature: Some(if number % 2 == 0 { 0.0 } else { 0.8 }),
                ..SamplingOptions::default()
            };
            let options = RequestOptions {
                sampling,
                max_tokens: Some(ANSWER.min(longest).max(1)),
                ignore_eos: true,
                logprobs: Some(0),
                ..RequestOptions::default()
            };
            engine.request(prompt((8 + 9 * number).min(longest).max(1), number, vocabulary), &options)
        })
    };
    let separate =
        requests().map(|request| bits(engine.submit(request?)?)).collect::<Result<Vec<_>, Failure>>()?;
    let together = engine.submit_all(requests().collect::<Result<Vec<_>, _>>()?)?;
    let together = together.into_iter().map(bits).collect::<Result<Vec<_>, Failure>>()?;
    let identical = separate.iter().zip(&together).filter(|(one, other)| one == other).count();
    let stats = engine.stats();
    Ok(json!({
        "exactness": engine.exactness().as_str(),
        "requests": REQUESTS,
        "identical": identical,
        "preemptions": stats.preemptions,
        "reserved_bytes": stats.reserved_bytes,
        "budget_bytes": stats.budget_bytes,
        "footprint_bytes": machine::footprint(),
    }))
}

/// Returns the tokens of an answer and the bits of their log probabilities.
fn bits(generation: Generation) -> Result<Vec<(u32, u32)>, Failure> {
    let mut tokens = Vec::new();
    let finished = generation.finish(|event| {
        if let Event::Token(token) = event {
            tokens.push((token.id, token.logprob.map_or(0, |it| it.logprob.to_bits())));
        }
        Ok::<(), Failure>(())
    })?;
    if let FinishReason::Error(message) = finished.reason {
        terminal::note(&format!("error: {message}"));
        return Err(Failure::Reported);
    }
    Ok(tokens)
}

/// Returns the output of mlx-lm for the same work, if it is installed.
fn mlx_lm(folder: &Path) -> Option<String> {
    terminal::status("asking mlx-lm");
    let python = |words: &[&str]| {
        let output = Command::new("python3").args(words).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    python(&["-c", "import mlx_lm"])?;
    let (prompt, answer) = (PROMPT.to_string(), ANSWER.to_string());
    let output = python(&[
        "-m",
        "mlx_lm",
        "benchmark",
        "--model",
        folder.to_str()?,
        "-p",
        &prompt,
        "-g",
        &answer,
        "-n",
        "3",
    ]);
    terminal::status("");
    output
}
