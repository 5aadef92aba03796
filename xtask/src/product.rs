//! The product's own commands, after the native libraries have been built.

use std::{collections::BTreeMap, fs, os::unix::process::CommandExt, process::Command};

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

/// Runs the tests of this tool, then those of the product, and prints the checks that this machine could not make. With arguments, which go to
/// the product's tests, only those run.
pub(crate) fn test(arguments: &[String]) -> Result<()> {
    setup::run()?;
    if arguments.is_empty() {
        let mut own = cargo_at_root()?;
        own.args(["test", "--quiet", "--profile", "xtask", "--package", "xtask"]);
        ensure!(own.status()?.success(), "the tests of xtask fail");
    }
    let list = workspace::root()?.join("target/skipped-checks");
    fs::write(&list, "")?;
    let mut command = cargo_at_root()?;
    command.arg("test").args(arguments).env(SKIPPED, &list);
    let status = command.status().context("cargo does not start")?;
    print!("{}", summary(&fs::read_to_string(&list)?));
    ensure!(status.success(), "the tests fail");
    Ok(())
}

/// The variable with the file in which tests list the checks that they skip.
const SKIPPED: &str = "MLX_SKIPPED_CHECKS";

/// Summarizes skipped checks: their number, and a count for each requirement.
fn summary(list: &str) -> String {
    let mut needs = BTreeMap::<&str, usize>::new();
    for (_, need) in list.lines().filter_map(|line| line.split_once(": needs ")) {
        *needs.entry(need).or_default() += 1;
    }
    let total = format!("\nchecks that were skipped: {}\n", needs.values().sum::<usize>());
    let lines = needs.iter().map(|(need, count)| format!("  {count} need {need}\n"));
    std::iter::once(total).chain(lines).collect::<Vec<_>>().concat()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_checks_are_counted_by_what_they_need() {
        let list =
            "skipped: a: needs /proc/PID/io\nskipped: b::c: needs /proc/PID/io\nskipped: d: needs a GPU\n";
        assert_eq!(summary(list), "\nchecks that were skipped: 3\n  2 need /proc/PID/io\n  1 need a GPU\n");
        assert_eq!(summary(""), "\nchecks that were skipped: 0\n");
    }
}
