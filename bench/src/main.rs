//! Runs one measurement per process: `mlx-bench NAME ARGUMENT...`. Prints its figures as one line of JSON, which bench/run.py reads.
#![forbid(unsafe_code)]

mod ahead;
mod embed;
mod figures;
mod gaps;
mod graph;
mod growth;
mod history;
mod host;
mod limits;
mod load;
mod masks;
mod off;
mod prefixes;
mod quiet;
mod ranks;
mod sampling;
mod seeing;
mod single;
mod slide;
mod speculation;
mod throughput;
mod together;

use std::process::ExitCode;

use figures::Figures;
use mimalloc::MiMalloc;
use mlx_core::{Error, Result};

/// The allocator of mlx and mlx-server (docs/decisions/0032-mimalloc.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

type Measure = fn(&[String]) -> Result<Figures>;

const MEASURES: [(&str, Measure); 19] = [
    ("ahead", ahead::measure),
    ("embed", embed::measure),
    ("gaps", gaps::measure),
    ("first-tokens", gaps::measure_first_tokens),
    ("growth", growth::measure),
    ("history", history::measure),
    ("host", host::measure),
    ("limits", limits::measure),
    ("masks", masks::measure),
    ("off", off::measure),
    ("prefixes", prefixes::measure),
    ("ranks", ranks::measure),
    ("sampling", sampling::measure),
    ("seeing", seeing::measure),
    ("single", single::measure),
    ("slide", slide::measure),
    ("speculation", speculation::measure),
    ("throughput", throughput::measure),
    ("together", together::measure),
];

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a measurement's result is what it prints")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(printed) => println!("{printed}"),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run(arguments: &[String]) -> Result<String> {
    let names = || MEASURES.map(|(name, _)| name).join(", ") + ", graph";
    let (name, rest) = arguments
        .split_first()
        .ok_or_else(|| Error::request("the measurement", format!("is missing; there are {}", names())))?;
    let measure = MEASURES.iter().find(|(known, _)| known == name).map(|(_, measure)| measure);
    let unknown =
        || Error::request("the measurement", format!("{name:?} is not known; there are {}", names()));
    // Its output has one line per model.
    if name == "graph" {
        return graph::measure(rest);
    }
    measure.ok_or_else(unknown)?(rest).map(|figures| figures.to_string())
}
