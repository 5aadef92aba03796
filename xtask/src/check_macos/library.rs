//! Checks the libraries of a macOS release. Zig's compiler builds ours instead of Apple's, then all libraries are read.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::dist::{files, macos};
use crate::mach_o::Library;
use crate::process::output;
use crate::setup::{
    compile::Compiler,
    recipe::{self, Recipe},
    system::System,
    wheels,
};

/// The platform of MLX's packages, with the minimum macOS version.
const PLATFORM: &str = "macosx_14_0_arm64";
const TARGET: &str = "aarch64-macos.14.0";
/// Macros that zig's headers for macOS lack.
const MISSING: [&str; 2] = ["-DNAN=__builtin_nanf(\"\")", "-DINFINITY=__builtin_inff()"];
/// The libraries that a release may depend on: the system's, and MLX.
const SYSTEM: [&str; 2] = ["/usr/lib/", "/System/Library/Frameworks/"];
const MLX: &str = "@rpath/libmlx.dylib";

/// Links mlx-c for macOS in `folder` with zig from `python`'s packages, and checks the properties that matter for loading.
pub(super) fn check(folder: &Path, python: &Path) -> Result<()> {
    let recipe = Recipe::new()?;
    let build = folder.join(format!("mlx-{}", recipe.mlx));
    if !build.join("mlx/lib/libmlx.dylib").exists() {
        fs::create_dir_all(&build)?;
        let wheels = System::MacOs.wheels(&recipe.mlx);
        wheels::unpack(&wheels[..1], &[PLATFORM], &build)?;
    }
    recipe::write_helpers(&build)?;
    let mut words = vec![python.display().to_string()];
    words.extend(["-m", "ziglang", "c++", "-target", TARGET].map(str::to_owned));
    words.extend(MISSING.map(str::to_owned));
    // The install name in a release. The set-up on a Mac uses an absolute path.
    let home = Path::new("@rpath");
    Compiler::new(System::MacOs, words, &build, &recipe.mlx_c).library(home)?;
    let mlx = Library::read(&build.join("mlx/lib/libmlx.dylib"))?;
    let ours = Library::read(&build.join(System::MacOs.library()))?;
    check_loading(&mlx, &ours, home)?;
    let missing: Vec<&str> = ours.missing(MLX, &mlx);
    ensure!(missing.is_empty(), "libmlx.dylib has no {}", missing.join(", "));
    println!("{}: all {} symbols of MLX exist", System::MacOs.library(), ours.imports_of(MLX).count());
    check_release(folder, python, &build)
}

/// Lays out a release and checks each file. A small program replaces ours, because linking ours needs frameworks of Apple's SDK.
fn check_release(folder: &Path, python: &Path, build: &Path) -> Result<()> {
    let release = folder.join("release");
    if release.exists() {
        fs::remove_dir_all(&release)?;
    }
    files::copy(&macos::PARTS, build, &release.join("lib"))?;
    fs::create_dir_all(release.join("bin"))?;
    let source = folder.join("program.c");
    fs::write(&source, "int mlx_version(void *);\nint main(void) { return mlx_version(0); }\n")?;
    let mut link = Command::new(python);
    link.args(["-m", "ziglang", "cc", "-target", TARGET, "-o"]).arg(release.join("bin/mlx")).arg(&source);
    link.arg("-L").arg(release.join("lib")).args(["-lmlxc", "-Wl,-rpath,@executable_path/../lib"]);
    output(&mut link, "")?;
    macos::check(&release)?;
    println!("a release is relocatable: every file finds its libraries");
    Ok(())
}

/// Checks the names and search paths that the macOS loader uses.
fn check_loading(mlx: &Library, ours: &Library, home: &Path) -> Result<()> {
    let name = home.join(System::MacOs.library());
    ensure!(Path::new(&ours.name) == name, "the install name of libmlxc.dylib is {}", ours.name);
    ensure!(mlx.name == MLX, "the install name of libmlx.dylib is {}", mlx.name);
    ensure!(
        ours.search.iter().any(|path| path == "@loader_path/mlx/lib"),
        "no search path leads to libmlx.dylib"
    );
    ensure!(ours.needed.iter().any(|needed| needed == MLX), "libmlxc.dylib is not linked with libmlx.dylib");
    for library in [mlx, ours] {
        let foreign = |needed: &&String| {
            *needed != MLX
                && *needed != &library.name
                && !SYSTEM.iter().any(|folder| needed.starts_with(folder))
        };
        if let Some(needed) = library.needed.iter().find(foreign) {
            anyhow::bail!("{} needs {needed}, which a Mac may not have", library.name);
        }
        let oldest = library.oldest.context("a library does not declare its minimum macOS version")?;
        ensure!(oldest <= (14, 0), "{} needs macOS {}.{}", library.name, oldest.0, oldest.1);
    }
    Ok(())
}
