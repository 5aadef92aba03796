//! `cargo xtask real`: measures the figures of docs/quality.md on trained models.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::real_model::{self, GEMMA3, SMOLLM2};
use crate::{python, setup, workspace};

/// Builds `mlx` with optimization, fetches the models and runs bench/quality in a virtual environment under `target`.
pub(crate) fn run() -> Result<()> {
    setup::run()?;
    let root = workspace::root()?;
    let packages = root.join("bench/quality/requirements.txt");
    let python = python::with_packages(&root.join("target/real-venv"), &packages)?;
    let mut build = workspace::cargo();
    build.args(["build", "--release", "--package", "mlx-cli", "--bin", "mlx"]).current_dir(&root);
    ensure!(build.status()?.success(), "the program does not build");
    let mut measure = Command::new(python);
    measure.current_dir(root.join("bench")).args(["-m", "quality"]);
    measure.arg("--mlx").arg(root.join("target/release/mlx")).arg("--folder").arg(real_model::folder()?);
    measure.arg("--smollm2").arg(SMOLLM2.path()?).arg("--gemma3").arg(GEMMA3.path()?);
    ensure!(measure.status()?.success(), "not everything was measured");
    Ok(())
}
