//! Measures many concurrent requests: `throughput MODEL STREAMS,... [exact|sampling [PROMPT TOKENS]]`. Tokens per second of the whole run with
//! prompts, and of the part after every sequence had its first token; peak memory.

use std::time::Instant;

use mlx_core::Result;
use mlx_core::array;
use mlx_core::engine::{Engine, EngineOptions, Generation};

use crate::figures::Figures;
use crate::load::{argument, engine_options, engine_with, moments_of, numbers, submit};

/// The tokens of each request: of the prompt, and of the answer.
#[derive(Clone, Copy)]
struct Load {
    prompt: usize,
    tokens: usize,
}

impl Load {
    const DEFAULT: Self = Self { prompt: 64, tokens: 128 };
}

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let model: String = argument(arguments, 0, "MODEL")?;
    let exact = arguments.get(2).is_some_and(|mode| mode == "exact");
    let options = EngineOptions { exact, ..engine_options() };
    let load = match arguments.len() {
        ..=3 => Load::DEFAULT,
        _ => Load { prompt: argument(arguments, 3, "PROMPT")?, tokens: argument(arguments, 4, "TOKENS")? },
    };
    let engine = engine_with(&model, &options)?;
    let mut figures = Figures::default();
    for sequences in numbers(arguments, 1, "STREAMS")? {
        // A GPU compiles kernels when their shapes first come.
        run(&engine, sequences, Load { tokens: load.tokens.min(8), ..load })?;
        array::reset_peak_memory()?;
        let (whole, decode) = run(&engine, sequences, load)?;
        figures.add(format!("{sequences} at once, tok/s"), whole);
        figures.add(format!("{sequences} at once, tok/s after the prompts"), decode);
        figures
            .add(format!("{sequences} at once, peak MB"), array::peak_memory()? as f64 / f64::from(1 << 20));
    }
    Ok(figures)
}

fn run(engine: &Engine, sequences: usize, load: Load) -> Result<(f64, f64)> {
    let begin = Instant::now();
    let request = |sequence| submit(engine, sequence, load.prompt, load.tokens);
    let generations: Vec<Generation> = (0..sequences).map(request).collect::<Result<_>>()?;
    let clock = |generation| std::thread::spawn(move || moments_of(load.tokens, generation));
    let threads: Vec<_> = generations.into_iter().map(clock).collect();
    let streams: Vec<Vec<Instant>> =
        threads.into_iter().map(|thread| thread.join().expect("a stream")).collect::<Result<_>>()?;
    let times = || streams.iter().flatten().copied();
    let end = times().max().expect("a token");
    let all_started = streams.iter().map(|stream| stream[0]).max().expect("a stream");
    let rate = |count: usize, begin: Instant| count as f64 / end.duration_since(begin).as_secs_f64();
    Ok((
        rate(sequences * load.tokens, begin),
        rate(times().filter(|&time| time > all_started).count(), all_started),
    ))
}
