//! Builds for macOS on Linux: the tools, stubs of the system's libraries, MLX's packages, our library, and Cargo's settings.

mod library;
mod sdk;
pub(crate) mod stub;
mod variant;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result};

use crate::process::output;
use crate::setup::recipe::Recipe;
use crate::setup::system::System;
use crate::{python, setup, workspace};
use stub::Symbols;
pub(crate) use variant::{VARIANTS, Variant};

pub(crate) const TARGET: &str = "aarch64-apple-darwin";

/// The minimum version of macOS of the program and of our library, as Rust's compiler reads it.
const OLDEST: &str = "14.0";

/// The folder with all inputs of such builds.
pub(crate) struct Workshop {
    folder: PathBuf,
    python: PathBuf,
    recipe: Recipe,
}

impl Workshop {
    /// Installs the tools and writes the stubs. Compiles and links our library.
    pub(crate) fn open() -> Result<Self> {
        // The bindings of this machine are those of macOS: they have the same functions, structs and constants.
        setup::run()?;
        let root = workspace::root()?;
        output(Command::new("rustup").args(["target", "add", TARGET]), "install Rust with rustup")?;
        let folder = root.join("target/macos");
        let python = python::with_packages(&folder.join("venv"), &root.join("xtask/check-macos.txt"))?;
        let workshop = Self { folder, python, recipe: Recipe::new()? };
        sdk::write(&workshop.sdk(), &workshop.libsystem()?)?;
        library::make(&workshop, &workshop.recipe, &workshop.unpacked(&VARIANTS[0])?)?;
        fs::write(workshop.config(), workshop.config_text()?)?;
        Ok(workshop)
    }

    /// Lets the next set-up compile our library again.
    pub(crate) fn discard_objects(&self) -> Result<()> {
        library::discard_objects(&self.library())
    }

    /// Returns the folder of MLX's package.
    pub(crate) fn unpacked(&self, variant: &Variant) -> Result<PathBuf> {
        variant.unpacked(&self.builds(), &self.recipe.mlx)
    }

    /// Returns the requirements of our library for pip.
    pub(crate) fn requirements(&self) -> Vec<String> {
        System::MacOs.linked_wheels(&self.recipe.mlx)
    }

    /// Returns the folder of our library.
    pub(crate) fn library(&self) -> PathBuf {
        self.builds().join(VARIANTS[0].name)
    }

    /// Makes a small program that uses our library in `folder`.
    pub(crate) fn program(&self, folder: &Path, program: &Path) -> Result<()> {
        library::program(self, folder, program)
    }

    /// Returns the symbols of system libraries that a release may use.
    pub(crate) fn system_symbols(&self) -> Result<Symbols> {
        sdk::symbols(&self.libsystem()?)
    }

    /// Returns a command of Cargo for macOS. zig compiles the C code of dependencies.
    pub(crate) fn cargo(&self, command: &str) -> Result<Command> {
        let programs = self.python.parent().context("a program has a folder")?;
        let path = env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(programs.to_owned()).chain(env::split_paths(&path));
        let mut cargo = Command::new(programs.join("cargo-zigbuild"));
        cargo.args([command, "--target", TARGET, "--config"]).arg(self.config());
        cargo.env("PATH", env::join_paths(paths)?).env("SDKROOT", self.sdk());
        cargo.env("MACOSX_DEPLOYMENT_TARGET", OLDEST).current_dir(workspace::root()?);
        Ok(cargo)
    }

    /// Returns the folder that replaces Apple's SDK.
    fn sdk(&self) -> PathBuf {
        self.folder.join("sdk")
    }

    /// Returns the folder of builds with this recipe. Its name changes with the sources.
    fn builds(&self) -> PathBuf {
        self.folder.join(self.recipe.folder.file_name().unwrap_or_default())
    }

    /// Returns zig's stub of the C library.
    fn libsystem(&self) -> Result<PathBuf> {
        let question = "import ziglang; print(ziglang.__path__[0])";
        let zig = output(Command::new(&self.python).args(["-c", question]), "")?;
        Ok(Path::new(zig.trim()).join("lib/libc/darwin/libSystem.tbd"))
    }

    fn config(&self) -> PathBuf {
        self.folder.join("cargo.toml")
    }

    /// Returns the Cargo config that replaces mlx-sys' build script, which would build MLX for macOS.
    fn config_text(&self) -> Result<String> {
        let search = format!("native={}", self.library().display());
        let bindings = setup::native()?.folder.display().to_string();
        Ok([
            format!("[target.{TARGET}.mlx]"),
            format!("rustc-link-search = [{search:?}]"),
            "rustc-link-lib = [\"dylib=mlxc\"]".to_owned(),
            format!("rustc-env = {{ OUT_DIR = {bindings:?} }}\n"),
        ]
        .join("\n"))
    }
}
