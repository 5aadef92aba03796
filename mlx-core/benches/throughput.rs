//! Tokens per second of many requests at once, and the peak of memory: `cargo bench --bench throughput -- MODEL [STREAMS,...]`.
//! `throughput_peer.py` runs the same load through mlx-lm.

use std::path::Path;
use std::time::Instant;

use mlx_core::array;
use mlx_core::engine::{EngineHandle, EngineOptions, Event, Generation, RequestOptions};
use mlx_core::sampling::SamplingOptions;

const PROMPT: usize = 64;
const TOKENS: usize = 128;

fn prompt(sequence: usize, vocabulary: usize) -> Vec<u32> {
    (0..PROMPT)
        .map(|place| ((place * 7919 + sequence * 104_729 + 11) % (vocabulary - 10) + 5) as u32)
        .collect()
}

/// Tokens per second of the whole run, and of what came after every sequence had its first token.
fn run(engine: &EngineHandle, sequences: usize) -> (f64, f64) {
    let options = RequestOptions {
        sampling: SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() },
        max_tokens: Some(TOKENS),
        ignore_eos: true,
        ..RequestOptions::default()
    };
    let begin = Instant::now();
    let submit = |sequence| {
        let request =
            engine.request(prompt(sequence, engine.spec().vocabulary), &options).expect("a valid request");
        engine.submit(request).expect("room in the queue")
    };
    let generations: Vec<Generation> = (0..sequences).map(submit).collect();
    let clock = |generation: Generation| {
        std::thread::spawn(move || {
            let tokens = generation.filter(|event| matches!(event, Event::Token(_)));
            tokens.map(|_| Instant::now()).collect::<Vec<_>>()
        })
    };
    let threads: Vec<_> = generations.into_iter().map(clock).collect();
    let streams: Vec<Vec<Instant>> =
        threads.into_iter().map(|thread| thread.join().expect("a stream")).collect();
    let times = || streams.iter().flatten().copied();
    let (count, end) = (times().count(), times().max().expect("a token"));
    assert_eq!(count, sequences * TOKENS);
    let all_started = streams.iter().map(|stream| stream[0]).max().expect("a stream");
    let rate = |count: usize, begin: Instant| count as f64 / end.duration_since(begin).as_secs_f64();
    (rate(count, begin), rate(times().filter(|&time| time > all_started).count(), all_started))
}

#[expect(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let Some(model) = arguments.first() else { return };
    let streams = arguments.get(1).map_or("1,4,8,16,32", String::as_str);
    for exact in [Some(false), Some(true)] {
        let options = EngineOptions { exact, prefix_cache: Some(0), ..EngineOptions::default() };
        let engine = EngineHandle::start(Path::new(model), &options, |_, _| {}).expect("the model loads");
        run(&engine, 1);
        for sequences in streams.split(',').map(|it| it.parse().expect("a number of streams")) {
            array::reset_peak_memory().expect("a device");
            let (whole, decode) = run(&engine, sequences);
            let peak = array::peak_memory().expect("a device") >> 20;
            println!(
                "{}: {sequences} sequences: {whole:.1} tok/s, decode {decode:.1} tok/s, peak {peak} MB",
                engine.exactness().as_str()
            );
        }
    }
}
