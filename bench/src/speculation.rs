//! Measures the gain of speculation: `speculation MODEL TEXT STREAMS SOURCE [DRAFT]`. Tokens per second after the prompts, tokens per pass, and
//! the share of accepted drafts. Texts: `copy` and `edit` on a chain (see bench/models.py), `free` and `json` on any model.
//! `speculation MODEL TEXT STREAMS rounds N` alternates requests with and without drafts on one engine, N times. Meant for unpredictable text, where
//! the effect is smaller than the difference between two processes.

use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use chat_format::Grammar;
use mlx_core::engine::{Engine, EngineOptions, Event, Generation, RequestOptions, Speculate};
use mlx_core::sampling::SamplingOptions;
use mlx_core::{Error, Result};
use serde_json::json;

use crate::figures::{Figures, median, percentile};
use crate::load::{argument, engine_options, engine_with, prompt};

const TOKENS: usize = 256;

/// The number of tokens in a chain; `FIRST` is its first token.
const CHAIN: usize = 2048;
const FIRST: usize = 5;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let model: String = argument(arguments, 0, "MODEL")?;
    let text: String = argument(arguments, 1, "TEXT")?;
    let streams: usize = argument(arguments, 2, "STREAMS")?;
    if arguments.get(3).is_some_and(|it| it == "rounds") {
        return by_turns(&model, &text, streams, argument(arguments, 4, "N")?);
    }
    let speculate: Speculate = argument(arguments, 3, "SOURCE")?;
    let draft_model = arguments.get(4).map(PathBuf::from);
    let options = EngineOptions { speculate, draft_model, ..engine_options() };
    let engine = engine_with(&model, &options)?;
    // The first run measures the times of steps.
    run(&engine, &text, streams, 0, None)?;
    let before = engine.stats();
    let seconds = run(&engine, &text, streams, 1, None)?;
    let after = engine.stats();
    let (drafted, accepted) =
        (after.drafted_tokens - before.drafted_tokens, after.accepted_tokens - before.accepted_tokens);
    let tokens = streams * TOKENS;
    let mut figures = Figures::default();
    figures.add("tok/s", tokens as f64 / seconds);
    figures.add("tokens a pass and stream", tokens as f64 / (tokens as f64 - accepted as f64));
    figures.add("right, share", if drafted == 0 { 0.0 } else { accepted as f64 / drafted as f64 });
    Ok(figures)
}

/// Returns speeds with drafts, without, and without once more, as ratios within each round. The order within a round changes.
fn by_turns(model: &str, text: &str, streams: usize, rounds: usize) -> Result<Figures> {
    let engine = engine_with(model, &EngineOptions { speculate: Speculate::Auto, ..engine_options() })?;
    let arms = [Speculate::Auto, Speculate::Off, Speculate::Off];
    run(&engine, text, streams, 0, None)?;
    let (mut gain, mut null) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let mut seconds = [0.0; 3];
        for place in 0..arms.len() {
            let arm = (place + round) % arms.len();
            seconds[arm] = run(&engine, text, streams, round, Some(arms[arm]))?;
        }
        gain.push(seconds[1] / seconds[0]);
        null.push(seconds[1] / seconds[2]);
    }
    let mut figures = Figures::default();
    for (name, ratios) in [("auto / off", gain), ("off again / off", null)] {
        figures.add(name, median(&ratios));
        figures.add(format!("{name}, lower quarter"), percentile(&ratios, 25));
        figures.add(format!("{name}, upper quarter"), percentile(&ratios, 75));
    }
    Ok(figures)
}

/// Returns the seconds in which all streams write their answers, counted from the last first token.
fn run(
    engine: &Engine,
    text: &str,
    streams: usize,
    round: usize,
    speculate: Option<Speculate>,
) -> Result<f64> {
    let requests = (0..streams).map(|stream| {
        // Many long prompts would only take time, which is not measured.
        let file = if streams > 1 { 512 } else { 2000 };
        // Each round has other requests, so that answers of one round do not speed up the next.
        let (prompt, options) = request(engine, text, streams * round + stream, file)?;
        engine.submit(engine.request(prompt, &RequestOptions { speculate, ..options })?)
    });
    let requests = requests.collect::<Result<Vec<_>>>()?;
    let times = |generation: Generation| -> Vec<Instant> {
        generation.filter(|event| matches!(event, Event::Token(_))).map(|_| Instant::now()).collect()
    };
    let streams: Vec<Vec<Instant>> = thread::scope(|scope| {
        let threads: Vec<_> = requests.into_iter().map(|it| scope.spawn(move || times(it))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a stream")).collect()
    });
    let begin = streams.iter().filter_map(|it| it.first()).max().expect("a token");
    let end = streams.iter().filter_map(|it| it.last()).max().expect("a token");
    Ok(end.duration_since(*begin).as_secs_f64())
}

/// Returns a request with a file of this many tokens as its prompt. The expected answer begins like the file.
fn request(engine: &Engine, text: &str, stream: usize, file: usize) -> Result<(Vec<u32>, RequestOptions)> {
    let spec = engine.spec();
    let link = |place: usize| FIRST + (place + 97 * stream) % CHAIN;
    // A token outside of the chain that leads to the beginning of the file.
    let turn = link(CHAIN - 1) + CHAIN;
    let file = (0..file).map(link).chain([turn]).map(|token| token as u32).collect();
    let free = prompt(stream, 64, spec.vocab_size);
    // At this temperature some draws leave the chain of such a model.
    let edits = 0.1 * spec.hidden_size as f32 / ((spec.vocab_size as f32).ln() + 3.0);
    let (prompt, temperature, constraint) = match text {
        "copy" => (file, 0.0, None),
        "edit" => (file, edits, None),
        "free" => (free, 1.0, None),
        "json" => (free, 1.0, Some(Grammar::JsonSchema(records()).into())),
        other => {
            return Err(Error::request("TEXT", format!("is {other:?}; there are copy, edit, free and json")));
        }
    };
    let options = RequestOptions {
        sampling: SamplingOptions {
            temperature: Some(temperature),
            seed: Some(stream as u64),
            ..SamplingOptions::default()
        },
        max_tokens: Some(TOKENS),
        ignore_eos: constraint.is_none(),
        constraint,
        ..RequestOptions::default()
    };
    Ok((prompt, options))
}

/// Returns the schema of a long list of objects with the same keys.
fn records() -> serde_json::Value {
    let text = json!({"type": "string", "maxLength": 12});
    let properties = json!({
        "identification": {"type": "integer"}, "description": text, "manufacturer": text,
        "availability": {"enum": ["available", "discontinued", "temporarily unavailable"]},
    });
    let required = ["identification", "description", "manufacturer", "availability"];
    let record = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    json!({"type": "array", "items": record, "minItems": 40})
}
