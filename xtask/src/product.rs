//! The product's own commands, after the native libraries have been built.

use std::{os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{setup, workspace};

/// Runs `mlx chat` with these arguments, built with optimization.
pub(crate) fn chat(arguments: &[String]) -> Result<()> {
    setup::run()?;
    // In the current directory, so that relative paths to models work.
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--package", "mlx-cli", "--bin", "mlx", "--", "chat"]).args(arguments);
    replace(command)
}

/// Runs the tests of this tool, then those of the product, so that the product's results come last. Arguments are for
/// the product, whose tests then run alone.
pub(crate) fn test(arguments: &[String]) -> Result<()> {
    setup::run()?;
    if arguments.is_empty() {
        let mut own = cargo_at_root()?;
        own.args(["test", "--quiet", "--profile", "xtask", "--package", "xtask"]);
        ensure!(own.status()?.success(), "the tests of xtask fail");
    }
    let mut command = cargo_at_root()?;
    command.arg("test").args(arguments);
    replace(command)
}

fn cargo_at_root() -> Result<Command> {
    let mut command = workspace::cargo();
    command.current_dir(workspace::root()?);
    Ok(command)
}

/// Replaces this process by the other program, which gets the terminal, the signals and the exit code.
fn replace(mut command: Command) -> Result<()> {
    Err(command.exec()).context("cargo does not start")
}
