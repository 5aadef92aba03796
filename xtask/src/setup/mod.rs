//! `cargo xtask setup`: what mlx-sys needs before Cargo can build it on this system.

mod assemble;
pub(crate) mod bindings;
pub(crate) mod compile;
mod from_source;
pub(crate) mod recipe;
mod registry;
pub(crate) mod system;
pub(crate) mod wheels;

use std::path::PathBuf;

use anyhow::Result;

/// What other tasks begin with: nothing if MLX is compiled from its sources, else the same as [`assemble()`].
pub(crate) fn run() -> Result<()> {
    if from_source::is_chosen(&recipe::Recipe::new()?) { Ok(()) } else { assemble() }
}

/// Assembles MLX from its packages; does nothing when everything exists.
pub(crate) fn assemble() -> Result<()> {
    assemble::run()
}

/// Leaves MLX to mlx-sys' build script, which compiles it on a Mac.
pub(crate) fn leave_to_mlx_sys() -> Result<()> {
    from_source::run()
}

/// Where the native libraries are, and for which target.
pub(crate) struct Native {
    pub(crate) host: String,
    pub(crate) folder: PathBuf,
}

/// The libraries that [`run`] makes.
pub(crate) fn native() -> Result<Native> {
    let recipe = recipe::Recipe::new()?;
    Ok(Native { host: recipe.host, folder: recipe.folder })
}
