//! `mlx`: chat with a model, or let it continue a text.
#![forbid(unsafe_code)]

mod answer;
mod args;
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
mod manual;
mod models;
mod pull;
mod request_args;
mod score;
mod serve;
mod terminal;

use std::io::IsTerminal;
use std::process::ExitCode;

use args::{Cli, Command};
use cache::CacheCommand;
use clap::Parser;
use exit_code::Failure;
use mlx_core::text::GUARDED_THREAD;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    quiet_guarded_threads();
    let cli = Cli::parse();
    let outcome = match &cli.command {
        Command::Generate(args) => {
            log(args.model.verbose);
            generate::run(args)
        }
        Command::Score(args) => {
            log(args.model.verbose);
            score::run(args)
        }
        Command::Chat(args) => {
            log(args.model.verbose);
            chat::run(args)
        }
        Command::Inspect(args) => inspect::run(args),
        Command::Bench(args) => {
            log(false);
            bench::run(args)
        }
        Command::Doctor(args) => {
            log(false);
            doctor::run(args)
        }
        Command::Convert(args) => {
            log(false);
            convert::run(args)
        }
        Command::Cache(command) => {
            log(matches!(command, CacheCommand::Save(args) if args.model.verbose));
            cache::run(command)
        }
        Command::Pull(args) => {
            log(false);
            pull::run(args)
        }
        Command::List(args) => models::list(args),
        Command::Rm(args) => models::remove(args),
        Command::Serve(args) => serve::run(args),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { folder } => manual::pages(folder),
    };
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    if let Failure::Error(error) = &failure {
        terminal::note(&format!("error: {error}"));
    }
    failure.exit_code()
}

/// A panic on a guarded thread becomes an error that is shown as one.
fn quiet_guarded_threads() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(GUARDED_THREAD) {
            default(panic);
        }
    }));
}

/// Log lines go to standard error; `MLX_LOG` chooses which, in the syntax of `tracing`'s filters.
fn log(verbose: bool) {
    let default = if verbose { "info" } else { "warn" };
    // What it logs is told as an error by whoever asked for a connection.
    let default = format!("{default},rustls_platform_verifier=off");
    let filter = EnvFilter::try_from_env("MLX_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .init();
}
