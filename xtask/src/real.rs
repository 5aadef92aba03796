//! `cargo xtask real`: measures the figures of docs/quality.md on trained models.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::real_model::{self, GEMMA3, SMOLLM2};
use crate::{bench, python, setup, workspace};

/// Builds `mlx` with optimization, fetches the models and runs bench/quality in a virtual environment under `target`. With `peers`, that
/// environment has llama.cpp.
pub(crate) fn run(peers: bool) -> Result<()> {
    setup::run()?;
    let root = workspace::root()?;
    let python = if peers {
        bench::python_with_peers(&root)?
    } else {
        let packages = root.join("bench/quality/requirements.txt");
        python::with_packages(&root.join("target/real-venv"), &packages)?
    };
    let mut build = workspace::cargo();
    build.args(["build", "--release", "--package", "mlx-cli", "--bin", "mlx"]).current_dir(&root);
    ensure!(build.status()?.success(), "the program does not build");
    let mut measure = Command::new(python);
    measure.current_dir(root.join("bench")).args(["-m", "quality"]);
    measure.arg("--mlx").arg(root.join("target/release/mlx")).arg("--folder").arg(real_model::folder()?);
    measure.arg("--smollm2").arg(SMOLLM2.path()?).arg("--gemma3").arg(GEMMA3.path()?);
    if peers {
        measure.arg("--peers");
    }
    ensure!(measure.status()?.success(), "not everything was measured");
    Ok(())
}
