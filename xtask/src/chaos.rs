//! `cargo xtask chaos`: deaths of engines under load.

use std::process::Command;

use anyhow::{Result, ensure};
use clap::Args;

use crate::{setup, workspace};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The number of deaths
    #[arg(long, default_value_t = 200)]
    moments: u32,
    /// The seed of their kinds and times
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Builds the server and runs bench/chaos.py. Python needs no packages.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run()?;
    let root = workspace::root()?;
    let mut build = workspace::cargo();
    // Without --package, the features are the same as in the tests, so nothing is compiled twice.
    build.args(["build", "--locked", "--bin", "mlx-server"]).current_dir(&root);
    ensure!(build.status()?.success(), "the server does not build");
    let mut chaos = Command::new("python3");
    chaos.arg(root.join("bench/chaos.py"));
    chaos.args(["--moments", &arguments.moments.to_string(), "--seed", &arguments.seed.to_string(), "--"]);
    chaos.arg(root.join("target/debug/mlx-server"));
    ensure!(chaos.status()?.success(), "an answer was lost or differs");
    Ok(())
}
