//! A release for a Mac: its files, how they find each other, and a check of that which runs on any system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::files::files_of;
use crate::mach_o::Library;
use crate::process::output;

/// The parts of the set-up that a release has. The kernels lie beside MLX, which looks for them there.
pub(crate) const PARTS: [&str; 3] = ["libmlxc.dylib", "mlx/lib/libmlx.dylib", "mlx/lib/mlx.metallib"];

/// Tells the linker where the program's libraries lie, seen from the program, and to leave room for other names.
pub(super) const FLAGS: [&str; 2] =
    ["-Clink-arg=-Wl,-rpath,@executable_path/../lib", "-Clink-arg=-Wl,-headerpad_max_install_names"];

/// Our library as a release calls it.
const OURS: &str = "@rpath/libmlxc.dylib";
/// Where the system's own libraries lie.
const SYSTEM: [&str; 2] = ["/usr/lib/", "/System/Library/"];
/// How a 64-bit file of the loader begins.
const MAGIC: [u8; 4] = [0xcf, 0xfa, 0xed, 0xfe];
const TOOLS: &str = "install the Command Line Tools with `xcode-select --install`";

/// Takes the path of the set-up out of the program and out of our library, and checks the release.
pub(super) fn make_movable(release: &Path) -> Result<()> {
    let (program, library) = (release.join("bin/mlx"), release.join("lib/libmlxc.dylib"));
    let old = Library::read(&library)?.name;
    let mut rename = Command::new("install_name_tool");
    output(rename.args(["-id", OURS]).arg(&library), TOOLS)?;
    let mut rename = Command::new("install_name_tool");
    output(rename.args(["-change", &old, OURS]).arg(&program), TOOLS)?;
    // Their signatures were made for other bytes.
    let mut sign = Command::new("codesign");
    output(sign.args(["--force", "--sign", "-"]).args([&library, &program]), TOOLS)?;
    check(release)
}

/// Checks that every file of a release finds what it loads, in the release or in the system, wherever the release lies.
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
    ensure!(loaded.iter().any(|it| it.1 == release.join("bin/mlx")), "bin/mlx is no program of a Mac");
    loaded.iter().try_for_each(|(library, file)| {
        check_file(library, file, &loaded).with_context(|| format!("{} cannot be moved", file.display()))
    })
}

fn check_file(library: &Library, file: &Path, loaded: &[(Library, PathBuf)]) -> Result<()> {
    ensure!(library.is_signed, "it has no signature");
    ensure!(
        library.name.is_empty() || library.name.starts_with("@rpath/"),
        "it calls itself {}",
        library.name
    );
    let folder = file.parent().context("a file lies in a folder")?;
    let mut places = Vec::new();
    for path in &library.search {
        let inside =
            ["@loader_path/", "@executable_path/"].iter().find_map(|origin| path.strip_prefix(origin));
        places.push(folder.join(inside.with_context(|| format!("it looks for libraries in {path}"))?));
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
