//! macOS: mlx-sys builds MLX itself; this checks for the two tools that it needs.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::process::succeeds;

pub(super) fn run() -> Result<()> {
    ensure!(
        succeeds(Command::new("cmake").arg("--version")),
        "cmake is missing, which builds MLX: install it with `brew install cmake`"
    );
    ensure!(
        succeeds(Command::new("xcrun").args(["--sdk", "macosx", "metal", "--version"])),
        "the Metal compiler is missing: install Xcode, select it with `sudo xcode-select -s \
         /Applications/Xcode.app`, then run `xcodebuild -downloadComponent MetalToolchain`"
    );
    Ok(())
}
