//! `mlx`: chat with a model, or let it continue a text.
#![forbid(unsafe_code)]

mod answer;
mod args;
mod ask;
mod bench;
mod cache;
mod chat;
mod convert;
mod doctor;
mod exit_code;
mod generate;
mod input;
mod inspect;
mod interrupt;
mod launch;
mod manual;
mod model_args;
mod models;
mod parse;
mod pull;
mod request_args;
mod score;
mod serve;
mod terminal;
mod think;

use std::io::IsTerminal;
use std::process::ExitCode;

use args::{Cli, Command};
use cache::CacheCommand;
use clap::Parser;
use exit_code::Failure;
use mimalloc::MiMalloc;
use mlx_core::text::GUARDED_THREAD;
use mlx_options::log_filter;

/// The system's allocator keeps what a burst of large requests has freed (docs/decisions/0032-mimalloc.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    quiet_guarded_threads();
    let cli = Cli::parse();
    let Err(failure) = start_log(&cli.command).and_then(|()| run(&cli.command)) else {
        return ExitCode::SUCCESS;
    };
    if let Some(message) = failure.message() {
        terminal::note(&format!("error: {message}"));
    }
    failure.exit_code()
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Generate(args) => generate::run(args),
        Command::Score(args) => score::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Ask(args) => ask::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Cache(command) => cache::run(command),
        Command::Parse(args) => parse::run(args),
        Command::Pull(args) => pull::run(args),
        Command::List(args) => models::list(args),
        Command::Rm(args) => models::remove(args),
        Command::Serve(args) => serve::run(args),
        Command::Launch(args) => launch::run(args),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { folder } => manual::pages(folder),
    }
}

/// A panic on a guarded thread becomes an error with a message of its own; the default hook would print a second one.
fn quiet_guarded_threads() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(GUARDED_THREAD) {
            default(panic);
        }
    }));
}

/// Log lines go to standard error.
fn start_log(command: &Command) -> Result<(), Failure> {
    let verbose = match command {
        Command::Generate(args) => args.model.verbose,
        Command::Score(args) => args.model.verbose,
        Command::Chat(args) => args.model.verbose,
        Command::Bench(args) => args.model.verbose,
        Command::Cache(CacheCommand::Save(args)) => args.model.verbose,
        // The server starts its own log.
        Command::Serve(_) => return Ok(()),
        _ => false,
    };
    let default = if verbose { "info" } else { "warn" };
    // What the certificate verifier logs is part of the error of its connection.
    let filter = log_filter(&format!("{default},rustls_platform_verifier=off"));
    let filter = filter.map_err(|message| {
        terminal::note(&format!("error: {message}"));
        Failure::Reported
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .init();
    Ok(())
}
