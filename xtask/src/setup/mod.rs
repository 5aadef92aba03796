//! `cargo xtask setup`: what mlx-sys needs before Cargo can build it on this platform.

#[cfg(target_os = "linux")]
pub(crate) mod bindings;
#[cfg(target_os = "linux")]
mod compile;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "linux")]
mod recipe;
#[cfg(target_os = "linux")]
mod registry;
#[cfg(target_os = "linux")]
mod wheels;

#[cfg(target_os = "linux")]
use std::path::PathBuf;

use anyhow::Result;

/// Does nothing when everything exists.
pub(crate) fn run() -> Result<()> {
    #[cfg(target_os = "linux")]
    return linux::run();
    #[cfg(target_os = "macos")]
    return macos::run();
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    anyhow::bail!("MLX runs on macOS and Linux; there is no way to build it on this system");
}

/// Where the native libraries are, and for which target.
#[cfg(target_os = "linux")]
pub(crate) struct Native {
    pub(crate) host: String,
    pub(crate) folder: PathBuf,
}

/// The libraries that [`run`] makes.
#[cfg(target_os = "linux")]
pub(crate) fn native() -> Result<Native> {
    let recipe = recipe::Recipe::new()?;
    Ok(Native { host: recipe.host, folder: recipe.folder })
}
