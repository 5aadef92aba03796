//! `cargo xtask bench`: measures the figures of docs/benchmarks.md, beside other programs.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{charts, python, setup, workspace};

/// With `--svg` draws the charts of that page. Otherwise builds the programs with optimization, and runs bench/run.py with these arguments in a virtual environment under `target`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if arguments == ["--svg"] {
        return charts::draw();
    }
    setup::run()?;
    let root = workspace::root()?;
    let bench = root.join("bench");
    let python = python::with_packages(&root.join("target/bench-venv"), &bench.join("requirements.txt"))?;
    let mut build = workspace::cargo();
    build.args(["build", "--release"]).current_dir(&root);
    for package in ["mlx-bench", "mlx-cli", "mlx-server"] {
        build.args(["--package", package]);
    }
    ensure!(build.status()?.success(), "the programs do not build");
    let status = Command::new(&python).arg(bench.join("run.py")).args(arguments).status()?;
    ensure!(status.success(), "not everything was measured");
    Ok(())
}
