//! `mlx completions` and `mlx man`: shell completion scripts and manual pages.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::{Shell, generate};
use mlx_core::Error;

use crate::args::Cli;
use crate::exit_code::Failure;
use crate::terminal;

/// Prints the completion script of a shell.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "mlx", &mut script);
    terminal::show(&String::from_utf8_lossy(&script))
}

/// Writes a manual page for the program and one for each command.
pub(crate) fn pages(folder: &Path) -> Result<(), Failure> {
    let about = |error| Error::io(folder, error);
    std::fs::create_dir_all(folder).map_err(about)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(about)?;
    terminal::note(&format!("the manual pages are in {0}; read one with: man {0}/mlx.1", folder.display()));
    Ok(())
}
