//! Assembles MLX from its published packages. This replaces mlx-sys' build script, which needs Xcode and CMake.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result};

use super::{
    bindings,
    compile::Compiler,
    recipe::{self, Recipe},
    system::System,
    wheels,
};
use crate::process::output;

/// Builds the libraries unless they exist. The complete folder is renamed into place, and Cargo's configuration is written after the
/// self-check. So an interrupted run can simply be repeated.
pub(super) fn run(recipe: &Recipe) -> Result<()> {
    if is_done(recipe) {
        return Ok(());
    }
    fs::create_dir_all(&recipe.native)?;
    // Held until this function returns. A concurrent setup waits here and then finds everything done.
    let lock = File::create(recipe.native.join("lock"))?;
    if lock.try_lock().is_err() {
        say("waiting for another setup");
        lock.lock().context("the native folder cannot be locked")?;
    }
    if is_done(recipe) {
        return Ok(());
    }
    let start = Instant::now();
    say("assembling MLX from its packages; a minute or two on two cores, once");
    build(recipe)?;
    say(&format!("done in {} s", start.elapsed().as_secs()));
    Ok(())
}

fn is_done(recipe: &Recipe) -> bool {
    fs::read_to_string(recipe.cargo_config()).is_ok_and(|text| text == cargo_config(recipe))
        && recipe.folder.join(recipe.system.library()).is_file()
}

fn build(recipe: &Recipe) -> Result<()> {
    let partial = partial(&recipe.folder);
    discard(&partial)?;
    discard(&recipe.folder)?;
    recipe::write_helpers(&partial)?;
    // A missing compiler should fail before any download.
    let compiler = Compiler::find(recipe.system, &partial, &recipe.mlx_c)?;

    let wheels = recipe.system.wheels(&recipe.mlx);
    say(&format!("downloading {}", wheels.join(", ")));
    wheels::unpack(&wheels, &[], &partial)?;
    say("writing the bindings");
    make_bindings(recipe, &partial, &compiler)?;
    say("compiling mlx-c");
    compiler.library(&recipe.folder)?;
    fs::remove_dir_all(partial.join("objects"))?;
    fs::rename(&partial, &recipe.folder)?;

    if recipe.system.has_kernels() {
        say("checking the result");
        let program = compiler.self_check(&recipe.folder)?;
        // Code for narrower registers runs on any processor.
        for width in ["16", "8", "4"] {
            output(Command::new(&program).env("MLX_REGISTER_WIDTH", width), "")
                .context("the native libraries were built, but their self-check fails")?;
        }
    }
    write_whole(&recipe.cargo_config(), &cargo_config(recipe))
}

fn make_bindings(recipe: &Recipe, partial: &Path, compiler: &Compiler<'_>) -> Result<()> {
    let clang = find_file(partial, recipe.system.libclang())?;
    let folder = clang.parent().context("a library has a folder")?;
    let prelude = partial.join("helpers/portability.h");
    let into = partial.join("bindings.rs");
    let builtin = compiler.builtin_headers()?;
    bindings::write_with(folder, &recipe.mlx_c, &prelude, &builtin, &sdk(recipe.system)?, &into)?;
    // It is large and no longer needed.
    fs::remove_file(clang)?;
    Ok(())
}

/// Returns the option with the C headers of a Mac, which libclang does not find itself.
fn sdk(system: System) -> Result<Vec<String>> {
    if system != System::MacOs {
        return Ok(Vec::new());
    }
    let path = output(Command::new("xcrun").arg("--show-sdk-path"), system.install_compiler())?;
    Ok(vec!["-isysroot".to_owned(), path.trim().to_owned()])
}

/// Returns the Cargo config that replaces mlx-sys' build script: see "links" in Cargo's book.
fn cargo_config(recipe: &Recipe) -> String {
    let folder = recipe.folder.display().to_string();
    let search = format!("native={folder}");
    // Read at compile time by mlx-core's Backend.
    let kernels = if recipe.system.has_kernels() { "\n[env]\nMLX_CPU_KERNELS = \"1\"\n" } else { "" };
    [
        recipe.headline(),
        format!("[target.{}.mlx]", recipe.host),
        format!("rustc-link-search = [{search:?}]"),
        "rustc-link-lib = [\"dylib=mlxc\"]".to_owned(),
        format!("rustc-env = {{ OUT_DIR = {folder:?} }}\n{kernels}"),
    ]
    .join("\n")
}

/// Writes a file atomically, so that readers see the old or the new text.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let partial = partial(path);
    fs::write(&partial, text)?;
    fs::rename(partial, path)?;
    Ok(())
}

/// Returns the path of an incomplete file or folder.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

fn discard(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

pub(crate) fn find_file(folder: &Path, name: &str) -> Result<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.ends_with(name) {
                return Ok(path);
            }
        }
    }
    anyhow::bail!("the downloaded packages hold no {name}")
}

fn say(text: &str) {
    eprintln!("setup: {text}");
}
