//! `cargo xtask proxies`: tests replicas of the server behind nginx, HAProxy and Envoy, with the files of docs/many-machines.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{python, setup, workspace};

/// Builds the server and runs the scripts of tests/proxies. `MLX_SERVER` has the path of the program. Envoy comes from PyPI; nginx and
/// HAProxy are tested if they are installed.
pub(crate) fn run() -> Result<()> {
    setup::run()?;
    let root = workspace::root()?;
    let scripts = root.join("tests/proxies");
    let python = python::with_packages(&root.join("target/proxies-venv"), &scripts.join("requirements.txt"))?;
    let mut build = workspace::cargo();
    // Without --package, the features are the same as in the tests, so nothing is compiled twice.
    build.args(["build", "--locked", "--bin", "mlx-server"]).current_dir(&root);
    ensure!(build.status()?.success(), "the server does not build");
    for script in ["service_files.py", "lost_requests.py"] {
        let mut test = Command::new(&python);
        test.arg(scripts.join(script)).env("MLX_SERVER", root.join("target/debug/mlx-server"));
        ensure!(test.status()?.success(), "{script} failed");
    }
    Ok(())
}
