//! `cargo xtask check-macos`: what can be said of macOS on Linux. The whole workspace is type-checked, and mlx-c is compiled and linked with
//! MLX's package for Macs by the code that does so on a Mac; what comes out is read.

mod library;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::output;
use crate::{python, setup, workspace};

const TARGET: &str = "aarch64-apple-darwin";

/// Checks all packages with the bindings of this machine's set-up, which have the same functions. With `may_skip`, a machine without Rust's
/// library for macOS skips it and says so.
pub(crate) fn run(may_skip: bool) -> Result<()> {
    if may_skip && !is_installed() {
        println!("skipped the check for macOS: `rustup target add {TARGET}` would make it run");
        return Ok(());
    }
    setup::run()?;
    let root = workspace::root()?;
    output(Command::new("rustup").args(["target", "add", TARGET]), "install Rust with rustup")?;
    let folder = root.join("target/check-macos");
    let python = python::with_packages(&folder.join("venv"), &root.join("xtask/check-macos.txt"))?;
    let programs = python.parent().context("a program has a folder")?;
    library::check(&folder, &python)?;
    let config = folder.join("cargo.toml");
    fs::write(&config, config_text(&root)?)?;
    let paths = std::env::join_paths(
        std::iter::once(programs.to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    )?;
    let mut check = Command::new(programs.join("cargo-zigbuild"));
    check.args(["check", "--workspace", "--target", TARGET, "--config"]).arg(&config);
    // Build scripts ask for a folder of headers; those of the C compiler are enough for what is checked.
    check.env("PATH", paths).env("SDKROOT", &folder).current_dir(&root);
    ensure!(check.status()?.success(), "the workspace does not compile for macOS; see above");
    Ok(())
}

fn is_installed() -> bool {
    let installed = output(Command::new("rustup").args(["target", "list", "--installed"]), "");
    installed.is_ok_and(|targets| targets.lines().any(|it| it == TARGET))
}

/// What takes the place of mlx-sys' build script, which would build MLX for macOS.
fn config_text(root: &Path) -> Result<String> {
    let path = root.join("target/native/cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let bindings = text.lines().find(|line| line.starts_with("rustc-env"));
    let bindings = bindings.with_context(|| format!("{} names no bindings", path.display()))?;
    Ok(format!("[target.{TARGET}.mlx]\nrustc-link-lib = []\n{bindings}\n"))
}
