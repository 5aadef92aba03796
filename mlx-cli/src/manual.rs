//! `mlx completions` and `mlx man`: shell completion scripts and man pages.

use std::path::Path;

use clap_complete::Shell;
use clap_complete::env::Shells;
use mlx_core::Error;

use crate::exit_code::Failure;
use crate::{args, completion, terminal};

/// Prints the completion script of a shell. The script calls this program for candidates.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let completer =
        shells.completer(&name).ok_or_else(|| Failure::usage("SHELL", format!("{name} is not supported")))?;
    let mut script = Vec::new();
    completer
        .write_registration(completion::VARIABLE, "mlx", "mlx", "mlx", &mut script)
        .map_err(|error| Error::io("the completion script", error))?;
    terminal::show(&String::from_utf8_lossy(&script))
}

/// Writes one man page for the program and one per command.
pub(crate) fn pages(folder: &Path) -> Result<(), Failure> {
    let about = |error| Error::io(folder, error);
    std::fs::create_dir_all(folder).map_err(about)?;
    clap_mangen::generate_to(args::command(), folder).map_err(about)?;
    terminal::note(&format!("the man pages are in {0}; read one with: man {0}/mlx.1", folder.display()));
    Ok(())
}
