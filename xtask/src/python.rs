//! Python programs, in virtual environments of their own under `target`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::output;

const INSTALL_VENV: &str = "install Python 3.11 with venv (on Debian or Ubuntu: `apt install python3-venv`)";

/// The Python of an environment that holds what `requirements` lists.
pub(crate) fn with_packages(environment: &Path, requirements: &Path) -> Result<PathBuf> {
    with_compiled_packages(environment, requirements, &[])
}

/// The same where packages are compiled here, with these environment variables.
pub(crate) fn with_compiled_packages(
    environment: &Path,
    requirements: &Path,
    variables: &[(&str, &str)],
) -> Result<PathBuf> {
    let python = environment.join("bin/python");
    if !python.exists() {
        output(Command::new("python3").args(["-m", "venv"]).arg(environment), INSTALL_VENV)?;
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    output(install.arg(requirements).envs(variables.iter().copied()), INSTALL_VENV)
        .with_context(|| format!("what {} lists could not be installed", requirements.display()))?;
    Ok(python)
}
