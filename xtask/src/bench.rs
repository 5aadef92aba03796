//! `cargo xtask bench`: measures the figures of docs/benchmarks.md, beside other programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::setup::system::System;
use crate::{charts, python, setup, workspace};

/// Environment variables for compiling llama.cpp on x86. GCC 12 removes stores that configure AMX tiles, and llama.cpp then crashes on
/// processors with AMX. pip's cache is off, since it may contain a build with this fault.
const COMPILER: &[(&str, &str)] =
    if cfg!(target_arch = "x86_64") { &[("CXXFLAGS", "-fno-dse"), ("PIP_NO_CACHE_DIR", "1")] } else { &[] };

/// With `--svg` draws the charts of that page. `graph` with options counts operations. Otherwise builds the programs with optimization, and
/// runs bench/run.py with these arguments in a virtual environment under `target`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if arguments == ["--svg"] {
        return charts::draw();
    }
    setup::run()?;
    let root = workspace::root()?;
    if let [topic, options @ ..] = arguments
        && topic == "graph"
        && !options.is_empty()
    {
        return count_operations(&root, options);
    }
    let python = if is_gpu(arguments) { python_with_gpu(&root)? } else { python_with_peers(&root)? };
    let mut build = workspace::cargo();
    build.args(["build", "--release"]).current_dir(&root);
    for package in ["mlx-bench", "mlx-cli", "mlx-server"] {
        build.args(["--package", package]);
    }
    ensure!(build.status()?.success(), "the programs do not build");
    // A topic compiles llama.cpp's server.
    let status = Command::new(&python)
        .arg(root.join("bench/run.py"))
        .args(arguments)
        .envs(COMPILER.iter().copied())
        .status()?;
    ensure!(status.success(), "not everything was measured");
    Ok(())
}

/// Topics that are measured on a GPU begin with `gpu`.
fn is_gpu(arguments: &[String]) -> bool {
    arguments.first().is_some_and(|topic| topic.starts_with("gpu"))
}

/// Python with the programs that a CPU is measured beside.
pub(crate) fn python_with_peers(root: &Path) -> Result<PathBuf> {
    let packages = root.join("bench/requirements.txt");
    python::with_compiled_packages(&root.join("target/bench-venv"), &packages, COMPILER)
}

/// Python with mlx-lm for the GPU of this machine. MLX has to be set up for it as well.
fn python_with_gpu(root: &Path) -> Result<PathBuf> {
    ensure!(
        matches!(setup::native()?.system, System::Cuda | System::MacOs),
        "gpu: MLX is set up for this machine's processor; run `cargo xtask setup --cuda` first"
    );
    python::with_packages(&root.join("target/bench-gpu-venv"), &root.join("bench/requirements-gpu.txt"))
}

/// Runs the measurement `graph` with these options, for all models of the tests if they name none.
fn count_operations(root: &Path, options: &[String]) -> Result<()> {
    let mut count = workspace::cargo();
    count.args(["run", "--quiet", "--release", "--package", "mlx-bench", "--", "graph"]).args(options);
    let is_value = |place: usize| place > 0 && options[place - 1] == "--backend";
    let names_one = (0..options.len()).any(|place| !options[place].starts_with("--") && !is_value(place));
    if !names_one {
        let mut models: Vec<PathBuf> = fs::read_dir(root.join("tests/golden/models"))?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        models.sort();
        count.args(models);
    }
    ensure!(count.status()?.success(), "not every model was counted");
    Ok(())
}
