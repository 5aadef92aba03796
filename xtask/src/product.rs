//! The product's own commands, after the native libraries have been made ready.

use std::{os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{setup, workspace};

/// Talks with a model: `mlx chat` with these arguments, built with optimization.
pub(crate) fn chat(arguments: &[String]) -> Result<()> {
    setup::run()?;
    // From where the user stands, so that a relative path to a model means what it says.
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--package", "mlx-cli", "--bin", "mlx", "--", "chat"]).args(arguments);
    replace(command)
}

/// Runs the tests of this tool, then those of the product, so that the latter's results end the output. Arguments are meant for
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

/// Becomes the other program: it gets the terminal and its signals, and its exit code is ours.
fn replace(mut command: Command) -> Result<()> {
    Err(command.exec()).context("cargo does not start")
}
