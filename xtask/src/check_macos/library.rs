//! Checks the libraries of macOS releases: one for each of MLX's packages, with a small program instead of `mlx`.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::cross_macos::{VARIANTS, Workshop};
use crate::dist::{files, macos};
use crate::mach_o::Library;

/// MLX's library.
const MLX: &str = "@rpath/libmlx.dylib";

/// Makes and checks a release of each package in `folder`.
pub(super) fn check(workshop: &Workshop, folder: &Path) -> Result<()> {
    let ours = Library::read(&workshop.library().join(macos::OURS))?;
    let imports = ours.imports.iter().filter(|import| import.library == MLX).count();
    ensure!(imports > 0, "{} uses no symbol of MLX", macos::OURS);
    let system = workshop.system_symbols()?;
    for variant in &VARIANTS {
        let release = folder.join("release");
        if release.exists() {
            fs::remove_dir_all(&release)?;
        }
        let package = workshop.unpacked(variant)?;
        let libraries = release.join("lib");
        files::copy(&[macos::OURS], &workshop.library(), &libraries)?;
        files::copy(&macos::parts_of_mlx(&package)?, &package, &libraries)?;
        fs::create_dir_all(release.join("bin"))?;
        workshop.program(&libraries, &release.join("bin/mlx"))?;
        macos::check(&release, Some(&system), Some(variant.oldest))?;
        macos::check_wheel(&release, &package, Some(&system))?;
        println!(
            "a release and a wheel for {} find their libraries and all symbols, {imports} of them in MLX",
            variant.name
        );
    }
    Ok(())
}
