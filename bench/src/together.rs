//! Measures the time to the first token of short prompts that arrive together: `together MODEL COUNT LENGTH`.

use std::thread;
use std::time::Instant;

use mlx_core::Result;
use mlx_core::engine::Event;

use crate::figures::{Figures, median};
use crate::load::{argument, engine, greedy, milliseconds, prompt};

const ROUNDS: usize = 30;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let engine = engine(&argument::<String>(arguments, 0, "MODEL")?)?;
    let (count, length): (usize, usize) =
        (argument(arguments, 1, "COUNT")?, argument(arguments, 2, "LENGTH")?);
    let vocabulary = engine.spec().vocab_size;
    let (mut middle, mut last) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let request = |index| engine.request(prompt(round * count + index, length, vocabulary), &greedy(1));
        let requests = (0..count).map(request).collect::<Result<Vec<_>>>()?;
        let begin = Instant::now();
        let generations = engine.submit_all(requests)?;
        let wait = |mut generation: mlx_core::engine::Generation| {
            let found = generation.find(|event| matches!(event, Event::Token(_)));
            assert!(found.is_some(), "every prompt gets a token");
            milliseconds(begin, Instant::now())
        };
        let waits: Vec<f64> = thread::scope(|scope| {
            let threads: Vec<_> = generations.into_iter().map(|it| scope.spawn(move || wait(it))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it waits")).collect()
        });
        // The first round measures the speed of the device.
        if round > 0 {
            middle.push(median(&waits));
            last.push(waits.iter().copied().fold(0.0, f64::max));
        }
    }
    let mut figures = Figures::default();
    figures.add("median first token, ms", median(&middle));
    figures.add("last first token, ms", median(&last));
    Ok(figures)
}
