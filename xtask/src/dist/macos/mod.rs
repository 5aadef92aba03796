//! The macOS release: its files, their search paths, and a check of them that runs on any system.

mod chain;
mod symbols;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::files::files_of;
use crate::cross_macos::stub::Symbols;
use crate::mach_o::Library;
use crate::process::output;
use chain::Images;

/// The library with mlx-c, relative to the folder of libraries.
pub(crate) const OURS: &str = "libmlxc.dylib";

/// Sets the program's search path for libraries, relative to the program, and reserves space for other names.
pub(super) const FLAGS: [&str; 2] =
    ["-Clink-arg=-Wl,-rpath,@executable_path/../lib", "-Clink-arg=-Wl,-headerpad_max_install_names"];

/// Sets the search path and selects the linker of Rust's toolchain, for a program that is linked on Linux.
pub(super) const CROSS_FLAGS: [&str; 5] = [
    "-Clinker=rust-lld",
    "-Clinker-flavor=ld64.lld",
    "-Clink-arg=-dead_strip_dylibs",
    "-Clink-arg=-rpath",
    "-Clink-arg=@executable_path/../lib",
];

/// MLX's libraries relative to the folder of the set-up or of its package. MLX expects its kernels next to itself.
const MLX: [&str; 2] = ["mlx/lib/libmlx.dylib", "mlx/lib/mlx.metallib"];
/// A library that only MLX for macOS 26 loads.
const JACCL: &str = "mlx/lib/libjaccl.dylib";

/// The magic number of 64-bit Mach-O files.
const MAGIC: [u8; 4] = [0xcf, 0xfa, 0xed, 0xfe];
const TOOLS: &str = "install the Command Line Tools with `xcode-select --install`";

/// Returns MLX's libraries that a release needs, relative to `folder`.
pub(crate) fn parts_of_mlx(folder: &Path) -> Result<Vec<&'static str>> {
    let library = Library::read(&folder.join(MLX[0]))?;
    let needs_jaccl = library.needed.iter().any(|needed| needed == "@rpath/libjaccl.dylib");
    Ok(MLX.into_iter().chain(needs_jaccl.then_some(JACCL)).collect())
}

/// Removes the path of the set-up from the program and from our library. Only a Mac can do this.
pub(super) fn make_relocatable(release: &Path) -> Result<()> {
    let (program, library) = (release.join("bin/mlx"), release.join("lib").join(OURS));
    let old = Library::read(&library)?.name;
    let new = format!("@rpath/{OURS}");
    let mut rename = Command::new("install_name_tool");
    output(rename.args(["-id", &new]).arg(&library), TOOLS)?;
    let mut rename = Command::new("install_name_tool");
    output(rename.args(["-change", &old, &new]).arg(&program), TOOLS)?;
    // The changes have invalidated their signatures.
    let mut sign = Command::new("codesign");
    output(sign.args(["--force", "--sign", "-"]).args([&library, &program]), TOOLS)?;
    Ok(())
}

/// Checks that a release works in any location: all signatures are valid, every file finds its libraries, in the release or in the system, and
/// our library uses the system's libc++. With the stubs of the system's libraries, checks also that every symbol exists. `oldest` is the
/// minimum version of macOS, if it is fixed.
pub(crate) fn check(release: &Path, system: Option<&Symbols>, oldest: Option<(u32, u32)>) -> Result<()> {
    let files = files_of(release)?;
    let kernels = release.join("lib").join(MLX[1]);
    ensure!(files.contains(&kernels), "there is no {}", kernels.display());
    let mut images = Images::new();
    for file in files {
        if fs::read(&file)?.starts_with(&MAGIC) {
            images.insert(file.clone(), Library::read(&file)?);
        }
    }
    let program = release.join("bin/mlx");
    ensure!(images.contains_key(&program), "bin/mlx is not a macOS program");
    for (path, image) in &images {
        check_image(image, oldest).with_context(|| format!("{} does not fit a release", path.display()))?;
    }
    let loaded = chain::load(&program, &images)?;
    symbols::check_exceptions(&release.join("lib").join(OURS), &images)?;
    if let Some(system) = system {
        symbols::check(&images, &loaded, system)?;
    }
    Ok(())
}

/// Checks that the program and our library of a release work in a wheel, with the package of MLX in `package` next to it. `system` has the
/// stubs of the system's libraries.
pub(crate) fn check_wheel(release: &Path, package: &Path, system: Option<&Symbols>) -> Result<()> {
    let site = Path::new("/site-packages");
    let program = site.join("mlx_local/bin/mlx");
    let mut images = Images::new();
    images.insert(program.clone(), Library::read(&release.join("bin/mlx"))?);
    images.insert(site.join("mlx_local/lib").join(OURS), Library::read(&release.join("lib").join(OURS))?);
    for part in parts_of_mlx(package)?.into_iter().filter(|part| *part != MLX[1]) {
        images.insert(site.join(part), Library::read(&package.join(part))?);
    }
    let loaded = chain::load(&program, &images).context("the program does not work in a wheel")?;
    system.map_or(Ok(()), |system| symbols::check(&images, &loaded, system))
}

/// Returns the platform tag of a wheel with the program and our library of a release. pip ignores minor versions of macOS 11 and newer, so the
/// tag has the minor version 0. MLX's package for macOS 26.2 does the same.
pub(super) fn platform(release: &Path) -> Result<String> {
    let oldest = |file: &str| {
        let image = Library::read(&release.join(file))?;
        image.oldest.with_context(|| format!("{file} does not declare its minimum version of macOS"))
    };
    let (major, _) = oldest("bin/mlx")?.max(oldest(&format!("lib/{OURS}"))?);
    Ok(format!("macosx_{major}_0_arm64"))
}

fn check_image(image: &Library, oldest: Option<(u32, u32)>) -> Result<()> {
    let name = &image.name;
    ensure!(name.is_empty() || name.starts_with("@rpath/"), "its install name is {name}");
    let own = image.oldest.context("it does not declare its minimum version of macOS")?;
    if let Some(oldest) = oldest {
        ensure!(own <= oldest, "it needs macOS {}.{}, not {}.{}", own.0, own.1, oldest.0, oldest.1);
    }
    Ok(())
}
