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

fn is_library(file: &Path) -> bool {
    name_of(file).contains(".so")
}
