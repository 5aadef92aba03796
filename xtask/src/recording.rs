//! `cargo xtask recording`: records the terminal and pictures the page for the README, with a small trained model.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::real_model::SMOLLM2;
use crate::{page, python, setup, workspace};

/// Builds the programs with optimization, then writes `docs/recording/mlx.svg` and `docs/recording/page.png`.
pub(crate) fn run() -> Result<()> {
    setup::run()?;
    let root = workspace::root()?;
    let browser = page::named_or_known_browser()?;
    let packages = root.join("target/page");
    page::install(&root.join("tests/page"), &packages)?;
    let recording = root.join("docs/recording");
    let python =
        python::with_packages(&root.join("target/recording-venv"), &recording.join("requirements.txt"))?;
    let mut build = workspace::cargo();
    build.args(["build", "--release", "--bin", "mlx", "--bin", "mlx-server"]).current_dir(&root);
    ensure!(build.status()?.success(), "the programs do not build");
    let (programs, model) = (root.join("target/release"), SMOLLM2.path()?);
    let mut record = Command::new(python);
    record
        .arg(recording.join("record.py"))
        .arg(programs.join("mlx"))
        .arg(&model)
        .arg(recording.join("mlx.svg"));
    ensure!(record.status()?.success(), "the terminal was not recorded");
    let mut picture = Command::new("node");
    picture.arg(recording.join("page.mjs")).arg(programs.join("mlx-server")).arg(&model);
    picture.arg(browser).arg(packages).arg(recording.join("page.png"));
    ensure!(picture.status()?.success(), "the page was not pictured");
    Ok(())
}
