//! `cargo xtask setup`: prepares what mlx-sys needs before Cargo can build it on this system.

pub(crate) mod assemble;
pub(crate) mod bindings;
pub(crate) mod compile;
mod from_source;
pub(crate) mod recipe;
mod registry;
pub(crate) mod system;
pub(crate) mod wheels;

use std::path::PathBuf;

use anyhow::Result;

use recipe::Recipe;
use system::System;

/// Runs the set-up that was last selected. Other tasks call it first.
pub(crate) fn run() -> Result<()> {
    let recipe = Recipe::selected()?;
    if from_source::is_chosen(&recipe) { Ok(()) } else { assemble::run(&recipe) }
}

/// Assembles MLX from its packages, unless that is already done.
pub(crate) fn assemble() -> Result<()> {
    assemble::run(&Recipe::new()?)
}

/// Like [`fn@assemble`], with MLX for NVIDIA GPUs, on any machine.
pub(crate) fn assemble_for_cuda() -> Result<()> {
    assemble::run(&Recipe::cuda()?)
}

/// Like [`fn@assemble`], without our kernels, on Linux.
pub(crate) fn assemble_plain() -> Result<()> {
    assemble::run(&Recipe::plain()?)
}

/// Leaves MLX to mlx-sys' build script, which compiles it on a Mac.
pub(crate) fn leave_to_mlx_sys() -> Result<()> {
    from_source::run()
}

/// Returns the target triple of this machine.
pub(crate) fn host() -> Result<String> {
    registry::host()
}

/// Returns the folder of Rust's toolchain.
pub(crate) fn toolchain() -> Result<PathBuf> {
    registry::toolchain()
}

/// The location and the target of the native libraries.
pub(crate) struct Native {
    pub(crate) host: String,
    pub(crate) system: System,
    pub(crate) folder: PathBuf,
    /// The version of MLX.
    pub(crate) mlx: String,
}

/// Returns the libraries that [`run`] prepares.
pub(crate) fn native() -> Result<Native> {
    let Recipe { host, system, folder, mlx, .. } = Recipe::selected()?;
    Ok(Native { host, system, folder, mlx })
}
