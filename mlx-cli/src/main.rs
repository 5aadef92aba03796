//! `mlx`: the command-line program.
#![forbid(unsafe_code)]

mod answer;
mod args;
mod ask;
mod bars;
mod bench;
mod cache;
mod chat;
mod clipboard;
mod cluster;
mod compare;
mod completion;
mod convert;
mod default_file;
mod default_model;
mod doctor;
mod embed;
mod exit_code;
mod generate;
mod input;
mod inspect;
mod interrupt;
mod keyboard;
mod launch;
mod manual;
mod model_args;
mod model_choice;
mod models;
mod note_lines;
mod overview;
mod parse;
mod profile_args;
mod ps;
mod pull;
mod recorded_request;
mod repeat;
mod replay;
mod request_args;
mod sampling_flags;
mod sampling_values;
mod score;
mod serve;
mod server_client;
mod service;
mod shell_word;
mod starter_models;
mod terminal;
mod think;
mod thumbnail;
mod transcribe;
mod worker;

use std::process::ExitCode;

use args::{Cli, Command};
use chat_template::GUARDED_THREAD;
use clap::FromArgMatches;
use exit_code::Failure;
use mimalloc::MiMalloc;
use mlx_options::log_filter;

/// mimalloc, because the system's allocator does not return memory after a burst of large requests (docs/decisions/0032-mimalloc.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    mlx_core::set_mlx_defaults();
    quiet_guarded_threads();
    completion::answer_shell(args::command);
    let arguments = args::completed(std::env::args_os().collect(), input::is_piped());
    let matches = args::command().get_matches_from(arguments);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let Err(failure) = start_log(&cli).and_then(|()| run(&cli)) else {
        return ExitCode::SUCCESS;
    };
    if let Some(message) = failure.message() {
        terminal::note(&format!("error: {message}"));
    }
    failure.exit_code()
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let Some(command) = &cli.command else { return overview::run() };
    match command {
        Command::Chat(args) => chat::run(args),
        Command::Pull(args) => pull::run(args),
        Command::List(args) => models::list(args),
        Command::Serve(args) => serve::run(args, cli.verbose),
        Command::Engine { log } => serve::run_engine(*log),
        Command::Generate(args) => generate::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Ask(args) => ask::run(args),
        Command::Default(args) => default_model::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Embed(args) => embed::run(args),
        Command::Transcribe(args) => transcribe::run(args),
        Command::Rm(args) => models::remove(args),
        Command::Score(args) => score::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Worker(args) => worker::run(args),
        Command::Cluster(command) => cluster::run(command),
        Command::Rank(args) => worker::rank::run(args),
        Command::Cache(command) => cache::run(command),
        Command::Ps(args) => ps::list(args),
        Command::Stop(args) => ps::stop(args),
        Command::Service(command) => service::run(command),
        Command::Launch(args) => launch::run(args),
        Command::Parse(args) => parse::run(args),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { folder } => manual::pages(folder),
    }
}

/// Silences the panic hook on guarded threads. Their panics become errors with a message, which the default hook would repeat.
fn quiet_guarded_threads() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(GUARDED_THREAD) {
            default(panic);
        }
    }));
}

/// Starts logging to standard error.
fn start_log(cli: &Cli) -> Result<(), Failure> {
    if matches!(cli.command, Some(Command::Serve(_) | Command::Engine { .. })) {
        // They start their own log.
        return Ok(());
    }
    let default = if cli.verbose { "info" } else { "warn" };
    // The log lines of the certificate verifier are part of the connection's error already.
    let filter = log_filter(&format!("{default},rustls_platform_verifier=off,rmcp=off"));
    let filter = filter.map_err(|message| {
        terminal::note(&format!("error: {message}"));
        Failure::Reported
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal::notes_have_colors())
        .without_time()
        .init();
    Ok(())
}
