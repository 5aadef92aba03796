//! Tasks that run the product: `cargo xtask chat` and `cargo xtask test`.

use std::{collections::BTreeMap, fs, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result, ensure};

use crate::real_model::SMOLLM2;
use crate::{setup, suite, workspace};

/// The flag of `cargo xtask chat` that selects the trained model.
const REAL: &str = "--real";

/// Runs `mlx chat` with these arguments, built with optimization. `--real` stands for [`SMOLLM2`].
pub(crate) fn chat(arguments: &[String]) -> Result<()> {
    setup::run()?;
    let mut model = Vec::new();
    if arguments.iter().any(|word| word == REAL) {
        model = vec!["--model".into(), SMOLLM2.path()?.into_os_string()];
    }
    let arguments = arguments.iter().filter(|word| *word != REAL);
    // In the current directory, so that relative paths to models work.
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--package", "mlx-cli", "--bin", "mlx", "--", "chat"]);
    command.args(model).args(arguments);
    replace(command)
}

/// Runs the tests of this tool, then all tests of the product, and prints the skipped checks. `--full` multiplies the cases of tests with many
/// cases. Other arguments go to `cargo test`, and only those tests run.
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

/// The variable that multiplies the cases of tests with many cases; `FULL` is its value for a full run.
const SCALE: &str = "MLX_TEST_SCALE";
const FULL: usize = 4;

/// The variable with the path of a file in which tests list skipped checks.
const SKIPPED: &str = "MLX_SKIPPED_CHECKS";

/// Summarizes skipped checks: their number, and the count of each requirement.
fn summary(list: &str) -> String {
    let mut needs = BTreeMap::<&str, usize>::new();
    for (_, need) in list.lines().filter_map(|line| line.split_once(": needs ")) {
        *needs.entry(need).or_default() += 1;
    }
    let total = format!("\nskipped checks: {}\n", needs.values().sum::<usize>());
    let lines = needs.iter().map(|(need, count)| format!("  {count} need {need}\n"));
    std::iter::once(total).chain(lines).collect::<Vec<_>>().concat()
}

/// Replaces this process by the other program, which inherits the terminal and receives the signals.
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
        assert_eq!(summary(list), "\nskipped checks: 3\n  2 need /proc/PID/io\n  1 need a GPU\n");
        assert_eq!(summary(""), "\nskipped checks: 0\n");
    }
}
