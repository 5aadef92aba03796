//! `cargo xtask setup --from-source`: mlx-sys builds MLX itself, on a Mac. This checks for the two tools that it needs.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};

use super::{recipe::Recipe, system::System};
use crate::process::succeeds;

/// What stands in place of the configuration that replaces mlx-sys' build script.
const CHOSEN: &str = "# Written by `cargo xtask setup --from-source`: mlx-sys builds MLX.\n";

pub(super) fn run() -> Result<()> {
    let recipe = Recipe::new()?;
    ensure!(
        recipe.system == System::MacOs,
        "mlx-sys builds MLX on macOS alone; run `cargo xtask setup` without --from-source"
    );
    ensure!(
        succeeds(Command::new("cmake").arg("--version")),
        "cmake is missing, which builds MLX: install it with `brew install cmake`"
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

/// Whether MLX is compiled from its sources here.
pub(super) fn is_chosen(recipe: &Recipe) -> bool {
    fs::read_to_string(recipe.cargo_config()).is_ok_and(|text| text == CHOSEN)
}
