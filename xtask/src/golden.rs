//! `cargo xtask golden`: writes the tests' reference outputs again, with the reference implementation in its pinned versions.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{process::output, workspace};

const INSTALL_VENV: &str = "install Python 3.11 with venv (on Debian or Ubuntu: `apt install python3-venv`)";

/// Runs tests/golden/make.py with these arguments, in a virtual environment under `target`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let root = workspace::root()?;
    let golden = root.join("tests/golden");
    let environment = root.join("target/golden-venv");
    let python = environment.join("bin/python");
    if !python.exists() {
        output(Command::new("python3").args(["-m", "venv"]).arg(&environment), INSTALL_VENV)?;
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    output(install.arg(golden.join("requirements.txt")), INSTALL_VENV)
        .context("the reference implementation could not be installed")?;
    let status = Command::new(&python).arg(golden.join("make.py")).args(arguments).status()?;
    ensure!(status.success(), "make.py failed, so the fixtures are not all written");
    Ok(())
}
