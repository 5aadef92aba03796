//! MLX's packages for macOS. Each is compiled for one version of macOS and also runs on newer ones.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::setup::system::System;
use crate::setup::wheels;

/// A package of MLX for macOS.
pub(crate) struct Variant {
    /// The name in archives.
    pub(crate) name: &'static str,
    /// The platform of the package on PyPI.
    platform: &'static str,
    /// The minimum version of macOS.
    pub(crate) oldest: (u32, u32),
    /// True if we make an archive of it.
    pub(crate) is_released: bool,
}

/// All packages, the oldest first. Only the last one has the kernels for M5.
pub(crate) const VARIANTS: [Variant; 3] = [
    Variant { name: "macos14", platform: "macosx_14_0_arm64", oldest: (14, 0), is_released: true },
    Variant { name: "macos15", platform: "macosx_15_0_arm64", oldest: (15, 0), is_released: false },
    Variant { name: "macos26", platform: "macosx_26_0_arm64", oldest: (26, 2), is_released: true },
];

impl Variant {
    /// Downloads the package into a folder of `builds`, unless it is there, and returns that folder.
    pub(super) fn unpacked(&self, builds: &Path, mlx: &str) -> Result<PathBuf> {
        let folder = builds.join(self.name);
        if !folder.join("mlx/lib/libmlx.dylib").exists() {
            fs::create_dir_all(&folder)?;
            wheels::unpack(&System::MacOs.linked_wheels(mlx), &[self.platform], &folder)?;
        }
        Ok(folder)
    }
}
