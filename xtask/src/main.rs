//! `cargo xtask`: what has to be done around the code, from the native libraries to the house rules.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a tool for the terminal reports there")]

mod bench;
mod clients;
mod fuzz;
mod golden;
mod process;
mod product;
mod python;
mod setup;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "What has to be done around the code")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Make the native libraries ready; a second run has nothing to do
    Setup,
    /// Make ready, build with optimization and run `mlx chat` with the arguments given here
    #[command(disable_help_flag = true)]
    Chat {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Make ready and run `cargo test` with the arguments given here
    #[command(disable_help_flag = true)]
    Test {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Write the golden fixtures again, with mlx-lm and transformers from Python's package index
    Golden {
        /// The folder to write to instead of tests/golden
        arguments: Vec<String>,
    },
    /// Ask the server with other people's clients, in Python
    Clients,
    /// Measure speed and memory beside other programs, with their packages from Python's index; see docs/benchmarks.md
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Try hostile files and requests, all that a machine can think of; needs nightly and cargo-fuzz
    Fuzz {
        /// One target of fuzz/fuzz_targets; without it all of them, one after the other
        target: Option<String>,
        /// How long each of them runs
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Check the house rules that a machine can check
    Tidy,
    /// Write the bindings of mlx-c: a step of `setup`, in a process of its own
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Bindings(setup::bindings::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Setup => setup::run(),
        Task::Chat { arguments } => product::chat(&arguments),
        Task::Test { arguments } => product::test(&arguments),
        Task::Golden { arguments } => golden::run(&arguments),
        Task::Bench { arguments } => bench::run(&arguments),
        Task::Clients => clients::run(),
        Task::Fuzz { target, seconds } => fuzz::run(target.as_deref(), seconds),
        Task::Tidy => tidy::run(),
        #[cfg(target_os = "linux")]
        Task::Bindings(arguments) => setup::bindings::write(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
