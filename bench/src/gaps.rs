//! Measures how long running streams wait for their next token while long prompts arrive: `gaps MODEL STREAMS ROUNDS`. Also measures how long
//! a short request waits for its first token while others decode: `first-tokens MODEL`.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mlx_core::engine::{Canceller, Engine, Event, Generation};
use mlx_core::{Error, Result};

use crate::figures::{Figures, median, percentile};
use crate::load::{argument, engine, milliseconds, moments, moments_of, submit};
use crate::quiet::{Disturbed, Watch};

/// Tokens of every stream before the measurement starts.
const WARM: usize = 32;
/// The maximum number of tokens of a stream; it is canceled before.
const MOST: usize = 20_000;
const PROMPTS: usize = 3;
const PROMPT: usize = 4000;
const SHORT: usize = 8;
const SHORTS: usize = 30;

/// Streams that run until they are canceled, and the arrival times of their tokens.
struct Streams(Vec<(Canceller, JoinHandle<Result<Vec<Instant>>>)>);

impl Streams {
    /// Starts streams and waits for their first tokens. Each produces `tokens` more unless it is canceled.
    fn start(engine: &Engine, count: usize, tokens: usize) -> Result<Self> {
        let start = |sequence| submit(engine, sequence, 64, WARM + tokens);
        let mut streams: Vec<Generation> = (0..count).map(start).collect::<Result<_>>()?;
        for stream in &mut streams {
            let tokens = stream.filter(|event| matches!(event, Event::Token(_)));
            if tokens.take(WARM).count() < WARM {
                return Err(Error::request("a stream", "ended before its first tokens"));
            }
        }
        let watch = |stream: Generation| (stream.canceller(), thread::spawn(move || moments(stream)));
        Ok(Self(streams.into_iter().map(watch).collect()))
    }

    fn cancel(&self) {
        self.0.iter().for_each(|(canceller, _)| canceller.cancel());
    }

    /// Returns the gaps between tokens from `begin` to `end`, per stream.
    fn gaps(self, begin: Instant, end: Option<Instant>) -> Result<Vec<Vec<Gap>>> {
        let of_stream = |(_, watch): (_, JoinHandle<Result<Vec<Instant>>>)| {
            let times = watch.join().expect("a stream")?;
            let pairs = times.windows(2).map(|pair| (pair[0], pair[1]));
            Ok(pairs.filter(|pair| pair.1 > begin && end.is_none_or(|end| pair.0 < end)).collect())
        };
        self.0.into_iter().map(of_stream).collect()
    }
}

/// A token and the next one.
type Gap = (Instant, Instant);

/// Returns the lengths in milliseconds of all gaps, and of those without steal time.
fn lengths(gaps: &[Gap], disturbed: &Disturbed) -> (Vec<f64>, Vec<f64>) {
    let length = |&(begin, end): &Gap| milliseconds(begin, end);
    let spared = gaps.iter().filter(|&&(begin, end)| disturbed.spares(begin, end));
    (gaps.iter().map(length).collect(), spared.map(length).collect())
}

/// Returns the milliseconds from the request to its first token.
fn first_token(engine: &Engine, sequence: usize, length: usize) -> Result<f64> {
    let begin = Instant::now();
    let generation = submit(engine, sequence, length, 1)?;
    Ok(milliseconds(begin, moments_of(1, generation)?[0]))
}

/// Gaps between tokens of streams without and with concurrent prompts, and the times of the prompts.
#[derive(Default)]
struct Waits {
    alone: Vec<Gap>,
    beside: Vec<Gap>,
    prompts: Vec<f64>,
}

impl Waits {
    /// Measures one round. A stream's steps grow longer with its context. So the streams first run together with the prompts, which gives a
    /// number of tokens. Then they run without prompts, from the same context, for as many tokens.
    fn round(&mut self, engine: &Engine, count: usize) -> Result<()> {
        let streams = Streams::start(engine, count, MOST)?;
        let begin = Instant::now();
        for prompt in 0..PROMPTS {
            self.prompts.push(first_token(engine, 100 + prompt, PROMPT)?);
        }
        let end = Instant::now();
        // A gap ends with its second token.
        thread::sleep(Duration::from_millis(100));
        streams.cancel();
        let beside = streams.gaps(begin, Some(end))?;
        let tokens = beside.iter().map(Vec::len).max().unwrap_or(0);
        self.beside.extend(beside.into_iter().flatten());
        let begin = Instant::now();
        let alone = Streams::start(engine, count, tokens)?.gaps(begin, None)?;
        self.alone.extend(alone.into_iter().flatten());
        Ok(())
    }
}

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let model: String = argument(arguments, 0, "MODEL")?;
    let (count, rounds): (usize, usize) =
        (argument(arguments, 1, "STREAMS")?, argument(arguments, 2, "ROUNDS")?);
    let engine = engine(&model)?;
    first_token(&engine, 0, PROMPT)?;
    let (watch, mut waits) = (Watch::start(), Waits::default());
    for _ in 0..rounds {
        waits.round(&engine, count)?;
    }
    let disturbed = watch.end();
    let (alone, quiet_alone) = lengths(&waits.alone, &disturbed);
    let (beside, quiet_beside) = lengths(&waits.beside, &disturbed);
    let mut figures = Figures::default();
    add(&mut figures, "", &alone, &beside);
    figures.add("a prompt takes, s", median(&waits.prompts) / 1e3);
    let counts = [quiet_alone.len(), quiet_beside.len()];
    let share = (counts[0] + counts[1]) as f64 / (alone.len() + beside.len()) as f64;
    figures.add("share of the gaps undisturbed", share);
    // With fewer gaps, the p99 is one of the ten longest.
    if counts.iter().all(|&count| count >= 1000) {
        add(&mut figures, "undisturbed: ", &quiet_alone, &quiet_beside);
    }
    Ok(figures)
}

fn add(figures: &mut Figures, which: &str, alone: &[f64], beside: &[f64]) {
    for (name, gaps, percent) in [
        ("median alone", alone, 50),
        ("p99 alone", alone, 99),
        ("median beside prompts", beside, 50),
        ("p99 beside prompts", beside, 99),
        ("longest beside prompts", beside, 100),
    ] {
        figures.add(format!("{which}{name}, ms"), percentile(gaps, percent));
    }
    figures.add(format!("{which}p99 beside / median alone"), percentile(beside, 99) / median(alone));
}

/// Measures one short request. The pause before it varies, so that requests arrive at any moment of a step.
fn short_wait(engine: &Engine, request: usize) -> Result<f64> {
    thread::sleep(Duration::from_micros(5000 + request as u64 * 1237 % 3000));
    first_token(engine, 100 + request, SHORT)
}

pub(crate) fn measure_first_tokens(arguments: &[String]) -> Result<Figures> {
    let engine = engine(&argument::<String>(arguments, 0, "MODEL")?)?;
    let streams = Streams::start(&engine, 4, MOST)?;
    let begin = Instant::now();
    let waits = (0..SHORTS).map(|request| short_wait(&engine, request)).collect::<Result<Vec<_>>>()?;
    streams.cancel();
    let steps: Vec<f64> =
        streams.gaps(begin, None)?.iter().flatten().map(|&(begin, end)| milliseconds(begin, end)).collect();
    let mut figures = Figures::default();
    figures.add("first token beside four streams, median ms", median(&waits));
    figures.add("first token beside four streams, p99 ms", percentile(&waits, 99));
    figures.add("a step of theirs, ms", median(&steps));
    Ok(figures)
}
