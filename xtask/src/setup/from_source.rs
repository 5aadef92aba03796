//! `cargo xtask setup --from-source`: lets mlx-sys build MLX itself, on a Mac. Checks for the two required tools.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};

use super::{recipe::Recipe, system::System};
use crate::process::succeeds;

/// The text that replaces the configuration for the assembled libraries.
const CHOSEN: &str = "# Written by `cargo xtask setup --from-source`: mlx-sys builds MLX.\n";

pub(super) fn run() -> Result<()> {
    let recipe = Recipe::new()?;
    ensure!(
        recipe.system == System::MacOs,
        "mlx-sys builds MLX only on macOS; run `cargo xtask setup` without --from-source"
    );
    ensure!(
        succeeds(Command::new("cmake").arg("--version")),
        "building MLX needs cmake: install it with `brew install cmake`"
    );
    ensure!(
        succeeds(Command::new("xcrun").args(["--sdk", "macosx", "metal", "--version"])),
        "the Metal compiler is missing: install Xcode, select it with `sudo xcode-select -s \
         /Applications/Xcode.app`, then run `xcodebuild -downloadComponent MetalToolchain`"
    );
    fs::create_dir_all(&recipe.native)?;
    let config = recipe.cargo_config();
    fs::write(&config, CHOSEN).with_context(|| format!("cannot write {}", config.display()))
}

/// Returns true if MLX is compiled from source here.
pub(super) fn is_chosen(recipe: &Recipe) -> bool {
    fs::read_to_string(recipe.cargo_config()).is_ok_and(|text| text == CHOSEN)
}
