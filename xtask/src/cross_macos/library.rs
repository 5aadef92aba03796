//! Makes libmlxc.dylib on Linux. zig compiles it, and the linker of Rust's toolchain links it with the stubs. zig's linker would add zig's
//! libc++, which cannot catch MLX's exceptions: MLX uses the libc++ of the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Workshop;
use crate::process::output;
use crate::setup;
use crate::setup::compile::Compiler;
use crate::setup::recipe::{self, Recipe};
use crate::setup::system::System;

/// The target of zig's compiler.
const TARGET: &str = "aarch64-macos.14.0";

/// Macros for zig's headers: two that they lack for macOS, and one that hides functions newer than the libc++ of macOS 14.
const MACROS: [&str; 3] = [
    "-DNAN=__builtin_nanf(\"\")",
    "-DINFINITY=__builtin_inff()",
    "-D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1",
];

/// Makes the library in `build`, the folder of the oldest package of MLX. One library serves all packages. Compiles only once.
pub(super) fn make(workshop: &Workshop, recipe: &Recipe, build: &Path) -> Result<()> {
    let mut link = linker(workshop, &build.join(System::MacOs.library()))?;
    link.args(["-dylib", "-install_name", "@rpath/libmlxc.dylib"]);
    link.args(System::MacOs.search_paths().iter().flat_map(|path| ["-rpath", path]));
    link.args(objects(workshop, recipe, build)?)
        .arg("-L")
        .arg(build.join("mlx/lib"))
        .args(["-lmlx", "-lc++"]);
    output(&mut link, "").context("libmlxc.dylib cannot be linked for macOS 14")?;
    Ok(())
}

/// Returns the object files in a fixed order, compiled if the last time was not completed.
fn objects(workshop: &Workshop, recipe: &Recipe, build: &Path) -> Result<Vec<PathBuf>> {
    let list = build.join("objects.txt");
    if !list.exists() {
        recipe::write_helpers(build)?;
        let mut words = zig(&workshop.python, "c++");
        words.extend(MACROS.map(str::to_owned));
        let mut objects = Compiler::new(System::MacOs, words, build, &recipe.mlx_c).compile()?;
        objects.sort();
        let lines: Vec<String> = objects.iter().map(|object| object.display().to_string()).collect();
        fs::write(&list, lines.join("\n"))?;
    }
    Ok(fs::read_to_string(list)?.lines().map(PathBuf::from).collect())
}

/// Lets the next [`make`] compile again.
pub(super) fn discard_objects(build: &Path) -> Result<()> {
    fs::remove_file(build.join("objects.txt")).context("nothing is compiled")
}

/// Makes a small program that uses the library in `folder`. Its search path is that of `mlx`.
pub(super) fn program(workshop: &Workshop, folder: &Path, program: &Path) -> Result<()> {
    let source = workshop.folder.join("program.c");
    fs::write(&source, "int mlx_version(void *);\nint main(void) { return mlx_version(0); }\n")?;
    let object = source.with_extension("o");
    let mut words = zig(&workshop.python, "cc").into_iter();
    let mut compile = Command::new(words.next().context("a command has a name")?);
    output(compile.args(words).args(["-c", "-o"]).args([&object, &source]), "")?;
    let mut link = linker(workshop, program)?;
    link.args(["-rpath", "@executable_path/../lib"]).arg(object).arg("-L").arg(folder).arg("-lmlxc");
    output(&mut link, "")?;
    Ok(())
}

/// Returns the command of zig's compiler.
fn zig(python: &Path, language: &str) -> Vec<String> {
    let python = python.display().to_string();
    [&python, "-m", "ziglang", language, "-target", TARGET].map(str::to_owned).to_vec()
}

/// Returns the command of LLVM's linker for macOS, with its first options. It signs its output ad hoc.
fn linker(workshop: &Workshop, output: &Path) -> Result<Command> {
    let programs = setup::toolchain()?.join("lib/rustlib").join(setup::host()?).join("bin");
    let linker = programs.join("gcc-ld/ld64.lld");
    ensure!(linker.exists(), "Rust's toolchain has no {}; install Rust with rustup", linker.display());
    let mut command = Command::new(linker);
    command.args(["-arch", "arm64", "-platform_version", "macos", "14.0", "14.0", "-syslibroot"]);
    command.arg(workshop.sdk()).args(["-S", "-dead_strip_dylibs", "-lSystem", "-o"]).arg(output);
    Ok(command)
}
