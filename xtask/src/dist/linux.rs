//! The Linux release: its files and their search paths.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::elf;
use super::files::{files_of, name_of};

/// Libraries of every Linux system that MLX's wheel runs on. All others are shipped.
const SYSTEM: [&str; 9] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// The parts of the set-up in a release: libraries, and folders of libraries.
pub(super) const PARTS: [&str; 4] = ["libmlxc.so", "mlx/lib", "mlx_cpu.libs", "scipy_openblas32/lib"];

/// Sets the program's search path for libraries, relative to the program.
pub(super) const FLAGS: [&str; 1] = ["-Clink-arg=-Wl,-rpath,$ORIGIN/../lib"];

/// Makes the release relocatable. Checks that all libraries are found in it or in the system.
pub(super) fn make_relocatable(release: &Path) -> Result<()> {
    let files = files_of(release)?;
    let program = release.join("bin/mlx");
    let loaded: Vec<&PathBuf> = files.iter().filter(|file| is_library(file) || **file == program).collect();
    let shipped: Vec<String> = loaded.iter().map(|file| name_of(file)).collect();
    for file in &loaded {
        let mut bytes = fs::read(file)?;
        elf::strip_library_paths(&mut bytes).with_context(|| file.display().to_string())?;
        let names = elf::names(&bytes)?;
        for needed in &names.needed {
            ensure!(
                shipped.contains(needed) || SYSTEM.contains(&needed.as_str()),
                "{} needs {needed}, which is not part of the release",
                file.display()
            );
        }
        for path in &names.paths {
            ensure!(path.starts_with("$ORIGIN"), "{} searches for libraries in {path}", file.display());
        }
        fs::write(file, bytes)?;
    }
    Ok(())
}

/// Returns the platform tag of a wheel: the newest glibc that a file of the release needs, MLX's included, and the processor of `target`.
pub(super) fn platform(release: &Path, target: &str) -> Result<String> {
    let mut glibc = elf::needed_glibc(&fs::read(release.join("bin/mlx"))?)?;
    for file in files_of(&release.join("lib"))? {
        glibc = glibc.max(elf::needed_glibc(&fs::read(file)?)?);
    }
    let processor = target.split('-').next().unwrap_or_default();
    Ok(format!("manylinux_2_{glibc}_{processor}"))
}

/// Checks that our library in a wheel finds every needed library of packages that pip installs next to the wheel. `packages` contains the
/// same packages as `site-packages`.
pub(super) fn check_wheel(release: &Path, packages: &Path) -> Result<()> {
    const SITE_PACKAGES: &str = "$ORIGIN/../../";
    let library = release.join("lib").join(PARTS[0]);
    let names = elf::names(&fs::read(&library)?)?;
    let folders = names.paths.iter().filter_map(|path| path.strip_prefix(SITE_PACKAGES));
    let folders: Vec<PathBuf> = folders.map(|folder| packages.join(folder)).collect();
    for needed in names.needed.iter().filter(|needed| !SYSTEM.contains(&needed.as_str())) {
        ensure!(
            folders.iter().any(|folder| folder.join(needed).is_file()),
            "{} finds no {needed} in site-packages",
            library.display()
        );
    }
    Ok(())
}

fn is_library(file: &Path) -> bool {
    name_of(file).contains(".so")
}
