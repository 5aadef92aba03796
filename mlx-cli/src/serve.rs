//! `mlx serve`: the HTTP server, as the program `mlx-server` has it.

use mlx_server::args::ServeArgs;

use crate::exit_code::Failure;
use crate::terminal;

/// Runs the command.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    match mlx_server::run(args) {
        Ok(text) => Ok(terminal::show(&text.unwrap_or_default())?),
        Err(error) => {
            terminal::note(&format!("error: {error}"));
            Err(Failure::Reported)
        }
    }
}
