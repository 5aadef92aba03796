//! `mlx-server`: serves local models over OpenAI's HTTP API.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's last word")]

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use mlx_options::printable;
use mlx_server::args::ServeArgs;
use mlx_server::config::Config;

/// The system's allocator does not return memory after bursts of large requests (docs/decisions/0032-mimalloc.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Serve local language models over OpenAI's HTTP API.
#[derive(Debug, Parser)]
#[command(name = "mlx-server", version)]
struct Program {
    #[command(flatten)]
    serve: ServeArgs,
}

fn main() -> ExitCode {
    mlx_core::set_mlx_defaults();
    let args = Program::parse().serve;
    match Config::resolve(&args).and_then(|config| mlx_server::run(config, &args)) {
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
