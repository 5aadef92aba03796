//! `mlx completions` and `mlx man`: what the command line says about itself, for shells and for `man`.

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

/// Writes a page for the program and one for each of its commands.
pub(crate) fn pages(folder: &Path) -> Result<(), Failure> {
    let about = |error| Error::io(folder, error);
    std::fs::create_dir_all(folder).map_err(about)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(about)?;
    terminal::note(&format!("the pages are in {}; read one with man -l", folder.display()));
    Ok(())
}
