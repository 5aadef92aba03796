//! `mlx-server`: serves local models over OpenAI's HTTP API.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's last word")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;
use mlx_options::printable;
use mlx_server::args::{LogFormat, ServeArgs};
use mlx_server::config::Config;

/// The system's allocator does not return memory after bursts of large requests (docs/decisions/0032-mimalloc.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Serve local language models over OpenAI's HTTP API.
#[derive(Debug, Parser)]
#[command(name = "mlx-server", version)]
struct Program {
    #[command(subcommand)]
    command: Option<Command>,

    /// Log polls of /health, /metrics and lists of models too, and more about the server
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the engine of a server; only the server starts it
    #[command(hide = true)]
    Engine {
        /// The log format
        #[arg(long, value_enum, default_value_t = LogFormat::Auto)]
        log: LogFormat,
    },
}

fn main() -> ExitCode {
    mlx_core::set_mlx_defaults();
    let Program { command, verbose, serve: args } = Program::parse();
    let outcome = match command {
        // The server has resolved the settings; a broken configuration file must not stop a new engine.
        Some(Command::Engine { log }) => mlx_server::run_engine(log).map(|()| None),
        None => Config::resolve(&args).and_then(|config| mlx_server::run(config, &args, verbose)),
    };
    match outcome {
        Ok(text) => {
            print!("{}", text.unwrap_or_default());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}", printable(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}
