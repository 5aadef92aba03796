//! How long running streams wait for their next token while long prompts arrive, and how long a short request waits for its first
//! one: `cargo bench --bench gaps -- MODEL [TOY_MODEL]`. `gaps_peer.py` does the same to mlx-lm.

use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mlx_core::engine::{Canceller, EngineHandle, EngineOptions, Event, Generation, RequestOptions};
use mlx_core::sampling::SamplingOptions;

/// Tokens that every stream has had before anything is measured.
const WARM: usize = 32;
const PROMPTS: usize = 3;
const PROMPT: usize = 4000;
const SHORT: usize = 8;
const SHORTS: usize = 30;

/// The first token is different in every `sequence`, so that no two prompts share a beginning.
fn submit(engine: &EngineHandle, sequence: usize, length: usize, tokens: usize) -> Generation {
    let options = RequestOptions {
        sampling: SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() },
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..RequestOptions::default()
    };
    let range = engine.spec().vocabulary - 10;
    let token = |place: usize| ((place * 7919 + sequence * 104_729 + 11) % range + 5) as u32;
    let request = engine.request((0..length).map(token).collect(), &options).expect("a valid request");
    engine.submit(request).expect("room in the queue")
}

/// Streams that run until they are told to stop, and the times of their tokens.
struct Streams(Vec<(Canceller, JoinHandle<Vec<Instant>>)>);

impl Streams {
    /// Streams that have had their first tokens, and that each note `tokens` more if nobody stops them.
    fn start(engine: &EngineHandle, count: usize, tokens: usize) -> Self {
        let mut streams: Vec<Generation> =
            (0..count).map(|sequence| submit(engine, sequence, 64, WARM + tokens)).collect();
        for stream in &mut streams {
            assert_eq!(stream.take(WARM).count(), WARM);
        }
        let watch = |stream: Generation| {
            let canceller = stream.canceller();
            let tokens = stream.filter(|event| matches!(event, Event::Token(_)));
            (canceller, thread::spawn(move || tokens.map(|_| Instant::now()).collect()))
        };
        Self(streams.into_iter().map(watch).collect())
    }

    fn cancel(&self) {
        self.0.iter().for_each(|(canceller, _)| canceller.cancel());
    }

    /// Milliseconds between tokens, sorted, and the most tokens of a stream; of the time from `begin` to `end`.
    fn gaps(self, begin: Instant, end: Option<Instant>) -> (Vec<f64>, usize) {
        let (mut gaps, mut most) = (Vec::new(), 0);
        for (_, watch) in self.0 {
            let times = watch.join().expect("a stream");
            let pairs =
                times.windows(2).filter(|pair| pair[1] > begin && end.is_none_or(|end| pair[0] < end));
            let before = gaps.len();
            gaps.extend(pairs.map(|pair| milliseconds(pair[1].duration_since(pair[0]))));
            most = most.max(gaps.len() - before);
        }
        gaps.sort_by(f64::total_cmp);
        (gaps, most)
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The value below which `percent` of the sorted `values` lie.
fn percentile(values: &[f64], percent: usize) -> f64 {
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

fn first_token(engine: &EngineHandle, sequence: usize, length: usize) -> f64 {
    let begin = Instant::now();
    let mut generation = submit(engine, sequence, length, 1);
    assert!(matches!(generation.next_blocking(), Some(Event::Token(_))));
    milliseconds(begin.elapsed())
}

/// A stream's steps grow longer with its context. So the streams first run beside the prompts, which tells how many tokens come
/// meanwhile; then they run alone, from the same prompts through just as many tokens.
#[expect(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
fn gaps(engine: &EngineHandle, count: usize) {
    let streams = Streams::start(engine, count, 20_000);
    let begin = Instant::now();
    let prompts: Vec<f64> =
        (0..PROMPTS).map(|prompt| first_token(engine, 100 + prompt, PROMPT) / 1e3).collect();
    let end = Instant::now();
    // A gap is whole once its second token has come.
    thread::sleep(Duration::from_millis(100));
    streams.cancel();
    let (with, tokens) = streams.gaps(begin, Some(end));
    let begin = Instant::now();
    let (alone, _) = Streams::start(engine, count, tokens).gaps(begin, None);
    let (median, tail) = (percentile(&alone, 50), percentile(&with, 99));
    println!(
        "{count} streams: alone median {median:.2} ms, p99 {:.2} ms; beside prompts median {:.2} ms, p99 {tail:.2} ms, max \
         {:.2} ms, {:.2} times the median alone; {tokens} tokens; prompts {prompts:.2?} s",
        percentile(&alone, 99),
        percentile(&with, 50),
        percentile(&with, 100),
        tail / median
    );
}

#[expect(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
fn first_tokens(engine: &EngineHandle) {
    let streams = Streams::start(engine, 4, 20_000);
    let begin = Instant::now();
    let short = |request: usize| {
        // Requests come at any moment of a step.
        thread::sleep(Duration::from_micros(5000 + request as u64 * 1237 % 3000));
        first_token(engine, 100 + request, SHORT)
    };
    let mut waits: Vec<f64> = (0..SHORTS).map(short).collect();
    streams.cancel();
    waits.sort_by(f64::total_cmp);
    let (steps, _) = streams.gaps(begin, None);
    println!(
        "first token beside 4 streams: median {:.2} ms, p99 {:.2} ms; a step {:.2} ms",
        percentile(&waits, 50),
        percentile(&waits, 99),
        percentile(&steps, 50)
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let start = |model: &String| {
        EngineHandle::start(
            Path::new(model),
            &EngineOptions { prefix_cache: Some(0), ..EngineOptions::default() },
            |_, _| {},
        )
        .expect("the model loads")
    };
    if let Some(model) = arguments.first() {
        let engine = start(model);
        first_token(&engine, 0, PROMPT);
        gaps(&engine, 1);
        gaps(&engine, 4);
    }
    if let Some(toy) = arguments.get(1) {
        first_tokens(&start(toy));
    }
}
