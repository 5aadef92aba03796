//! `cargo xtask setup`: what mlx-sys needs before Cargo can build it on this system.

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

/// What other tasks begin with: the set-up that was last asked for.
pub(crate) fn run() -> Result<()> {
    let recipe = Recipe::chosen()?;
    if from_source::is_chosen(&recipe) { Ok(()) } else { assemble::run(&recipe) }
}

/// Assembles MLX from its packages; does nothing when everything exists.
pub(crate) fn assemble() -> Result<()> {
    assemble::run(&Recipe::new()?)
}

/// The same with MLX for a GPU of NVIDIA, on any machine.
pub(crate) fn assemble_for_cuda() -> Result<()> {
    assemble::run(&Recipe::cuda()?)
}

/// The same without kernels of ours, on Linux.
pub(crate) fn assemble_plain() -> Result<()> {
    assemble::run(&Recipe::plain()?)
}

/// Leaves MLX to mlx-sys' build script, which compiles it on a Mac.
pub(crate) fn leave_to_mlx_sys() -> Result<()> {
    from_source::run()
}

/// The target triple of this machine.
pub(crate) fn host() -> Result<String> {
    registry::host()
}

/// Where the native libraries are, and for what.
pub(crate) struct Native {
    pub(crate) host: String,
    pub(crate) system: System,
    pub(crate) folder: PathBuf,
}

/// The libraries that [`run`] makes.
pub(crate) fn native() -> Result<Native> {
    let Recipe { host, system, folder, .. } = Recipe::chosen()?;
    Ok(Native { host, system, folder })
}
