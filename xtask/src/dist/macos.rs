//! The macOS release: its files, their search paths, and a check of them that runs on any system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::files::files_of;
use crate::mach_o::Library;
use crate::process::output;

/// The parts of the set-up in a release. MLX expects its kernels next to itself.
pub(crate) const PARTS: [&str; 3] = ["libmlxc.dylib", "mlx/lib/libmlx.dylib", "mlx/lib/mlx.metallib"];

/// Sets the program's search path for libraries, relative to the program, and reserves space for other names.
pub(super) const FLAGS: [&str; 2] =
    ["-Clink-arg=-Wl,-rpath,@executable_path/../lib", "-Clink-arg=-Wl,-headerpad_max_install_names"];

/// The install name of our library in a release.
const OURS: &str = "@rpath/libmlxc.dylib";
/// The folders of system libraries.
const SYSTEM: [&str; 2] = ["/usr/lib/", "/System/Library/"];
/// The magic number of 64-bit Mach-O files.
const MAGIC: [u8; 4] = [0xcf, 0xfa, 0xed, 0xfe];
const TOOLS: &str = "install the Command Line Tools with `xcode-select --install`";

/// Removes the path of the set-up from the program and from our library, and checks the release.
pub(super) fn make_relocatable(release: &Path) -> Result<()> {
    let (program, library) = (release.join("bin/mlx"), release.join("lib/libmlxc.dylib"));
    let old = Library::read(&library)?.name;
    let mut rename = Command::new("install_name_tool");
    output(rename.args(["-id", OURS]).arg(&library), TOOLS)?;
    let mut rename = Command::new("install_name_tool");
    output(rename.args(["-change", &old, OURS]).arg(&program), TOOLS)?;
    // The changes have invalidated their signatures.
    let mut sign = Command::new("codesign");
    output(sign.args(["--force", "--sign", "-"]).args([&library, &program]), TOOLS)?;
    check(release)
}

/// Checks that every file of a release finds its libraries, in the release or in the system, in any location of the release.
pub(crate) fn check(release: &Path) -> Result<()> {
    let files = files_of(release)?;
    let kernels = release.join("lib/mlx/lib/mlx.metallib");
    ensure!(files.contains(&kernels), "there is no {}", kernels.display());
    let mut loaded = Vec::new();
    for file in files {
        if fs::read(&file)?.starts_with(&MAGIC) {
            loaded.push((Library::read(&file)?, file));
        }
    }
    ensure!(loaded.iter().any(|it| it.1 == release.join("bin/mlx")), "bin/mlx is not a macOS program");
    loaded.iter().try_for_each(|(library, file)| {
        check_file(library, file, &loaded).with_context(|| format!("{} is not relocatable", file.display()))
    })
}

fn check_file(library: &Library, file: &Path, loaded: &[(Library, PathBuf)]) -> Result<()> {
    ensure!(library.is_signed, "it has no signature");
    ensure!(
        library.name.is_empty() || library.name.starts_with("@rpath/"),
        "its install name is {}",
        library.name
    );
    let folder = file.parent().context("a file lies in a folder")?;
    let mut places = Vec::new();
    for path in &library.search {
        let inside =
            ["@loader_path/", "@executable_path/"].iter().find_map(|origin| path.strip_prefix(origin));
        places.push(folder.join(inside.with_context(|| format!("it searches for libraries in {path}"))?));
    }
    for needed in library.needed.iter().filter(|needed| **needed != library.name) {
        if SYSTEM.iter().any(|folder| needed.starts_with(folder)) {
            continue;
        }
        let name = needed.strip_prefix("@rpath/").with_context(|| format!("it needs {needed}"))?;
        let is_there = |place: &PathBuf| {
            let wanted = place.join(name).canonicalize().ok();
            loaded.iter().any(|it| it.0.name == *needed && it.1.canonicalize().ok() == wanted)
        };
        ensure!(places.iter().any(is_there), "it finds no {needed}");
    }
    Ok(())
}
