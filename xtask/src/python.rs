//! Python programs in separate virtual environments under `target`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::output;

const INSTALL_VENV: &str = "install Python 3.11 with venv (on Debian or Ubuntu: `apt install python3-venv`)";

/// Returns the Python of an environment with the packages of `requirements`.
pub(crate) fn with_packages(environment: &Path, requirements: &Path) -> Result<PathBuf> {
    with_compiled_packages(environment, requirements, &[])
}

/// Like [`with_packages`], with environment variables for packages that are compiled here.
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
        .with_context(|| format!("the packages in {} could not be installed", requirements.display()))?;
    Ok(python)
}
