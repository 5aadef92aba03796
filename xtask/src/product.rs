//! The product's own commands, after the native libraries have been built.

use std::{collections::BTreeMap, fs, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{setup, suite, workspace};

/// Runs `mlx chat` with these arguments, built with optimization.
pub(crate) fn chat(arguments: &[String]) -> Result<()> {
    setup::run()?;
    // In the current directory, so that relative paths to models work.
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--package", "mlx-cli", "--bin", "mlx", "--", "chat"]).args(arguments);
    replace(command)
}

/// Runs the tests of this tool, then those of the product, and prints the checks that this machine could not make. `--full` multiplies the
/// cases of tests that have many. With other arguments, which go to `cargo test`, only those tests run.
pub(crate) fn test(arguments: &[String]) -> Result<()> {
    setup::run()?;
    let root = workspace::root()?;
    let cargo = || {
        let mut command = workspace::cargo();
        command.current_dir(&root);
        command
    };
    let list = root.join("target/skipped-checks");
    fs::write(&list, "")?;
    let skipped = (SKIPPED, list.display().to_string());
    let done = match arguments {
        [] => own(cargo()).and_then(|()| suite::run(cargo, &[skipped])),
        [full] if full == "--full" => {
            own(cargo()).and_then(|()| suite::run(cargo, &[skipped, (SCALE, FULL.to_string())]))
        }
        some => {
            let status = cargo().arg("test").args(some).env(skipped.0, skipped.1).status();
            status.context("cargo does not start").and_then(|status| {
                ensure!(status.success(), "tests fail");
                Ok(())
            })
        }
    };
    print!("{}", summary(&fs::read_to_string(&list)?));
    done
}

/// Runs the tests of this tool.
fn own(mut cargo: Command) -> Result<()> {
    cargo.args(["test", "--quiet", "--profile", "xtask", "--package", "xtask"]);
    ensure!(cargo.status()?.success(), "the tests of xtask fail");
    Ok(())
}

/// The variable that multiplies the cases of tests that have many, and its value for a full run.
const SCALE: &str = "MLX_TEST_SCALE";
const FULL: usize = 4;

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
