//! `cargo xtask golden`: regenerates the tests' reference outputs with pinned versions of the reference implementation.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{python, workspace};

/// Runs tests/golden/make.py with these arguments, in a virtual environment under `target`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let root = workspace::root()?;
    let golden = root.join("tests/golden");
    let environment = root.join("target/golden-venv");
    let python = python::with_packages(&environment, &golden.join("requirements.txt"))?;
    let status = Command::new(&python).arg(golden.join("make.py")).args(arguments).status()?;
    ensure!(status.success(), "make.py failed, so the fixtures are not all written");
    Ok(())
}
