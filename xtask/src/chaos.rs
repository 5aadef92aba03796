//! `cargo xtask chaos`: deaths of engines under load, and faults of the ranks of a divided model.

use std::process::Command;

use anyhow::{Result, ensure};
use clap::Args;

use crate::{setup, workspace};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Disturb the ranks of a divided model: kill, stop or disconnect them, under 32 clients, with 2 and 4 ranks and both ways to divide
    #[arg(long)]
    workers: bool,
    /// The number of deaths, by default 200; with --workers that of each number of ranks and each way, by default 40
    #[arg(long)]
    moments: Option<u32>,
    /// The seed of their kinds and times
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Builds the program and runs the script. Python needs no packages.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run()?;
    let root = workspace::root()?;
    let (script, program) =
        if arguments.workers { ("chaos_workers.py", "mlx") } else { ("chaos.py", "mlx-server") };
    let mut build = workspace::cargo();
    // Without --package, the features are the same as in the tests, so nothing is compiled twice.
    build.args(["build", "--locked", "--bin", program]).current_dir(&root);
    ensure!(build.status()?.success(), "{program} does not build");
    let mut chaos = Command::new("python3");
    chaos.arg(root.join("bench").join(script)).args(["--seed", &arguments.seed.to_string()]);
    if let Some(moments) = arguments.moments {
        chaos.args(["--moments", &moments.to_string()]);
    }
    chaos.arg("--").arg(root.join("target/debug").join(program));
    ensure!(chaos.status()?.success(), "an answer was lost or differs, or a rank was not named");
    Ok(())
}
