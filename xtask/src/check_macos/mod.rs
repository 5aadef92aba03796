//! `cargo xtask check-macos`: checks macOS support on Linux. Type-checks the whole workspace. Compiles and links mlx-c with MLX's package for
//! Macs, with the code that does so on a Mac, and reads the result.

mod library;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::output;
use crate::{python, setup, workspace};

const TARGET: &str = "aarch64-apple-darwin";

/// Checks all packages with the bindings of this machine's set-up, which have the same functions. Skips the check on a Mac with a message;
/// with `may_skip`, also on a machine without Rust's library for macOS.
pub(crate) fn run(may_skip: bool) -> Result<()> {
    if let Some(why) = skipped(&setup::host()?, may_skip, is_installed) {
        println!("skipped the check for macOS: {why}");
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
    // Build scripts need a folder of headers. The C compiler's headers suffice for this check.
    check.env("PATH", paths).env("SDKROOT", &folder).current_dir(&root);
    ensure!(check.status()?.success(), "the workspace does not compile for macOS; see above");
    Ok(())
}

/// Returns the reason to skip the check on this host, if there is one. On a Mac, all other steps of the gate compile for macOS.
fn skipped(host: &str, may_skip: bool, is_installed: impl FnOnce() -> bool) -> Option<String> {
    if host == TARGET {
        Some("this is a Mac, where the gate builds and tests everything for macOS".to_owned())
    } else if may_skip && !is_installed() {
        Some(format!("`rustup target add {TARGET}` would make it run"))
    } else {
        None
    }
}

fn is_installed() -> bool {
    let installed = output(Command::new("rustup").args(["target", "list", "--installed"]), "");
    installed.is_ok_and(|targets| targets.lines().any(|it| it == TARGET))
}

/// Returns the Cargo config that replaces mlx-sys' build script, which would build MLX for macOS.
fn config_text(root: &Path) -> Result<String> {
    let path = root.join("target/native/cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let bindings = text.lines().find(|line| line.starts_with("rustc-env"));
    let bindings = bindings.with_context(|| format!("{} names no bindings", path.display()))?;
    Ok(format!("[target.{TARGET}.mlx]\nrustc-link-lib = []\n{bindings}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_has_nothing_to_check_for_itself() {
        let linux = "x86_64-unknown-linux-gnu";
        for (host, may_skip, is_installed, skips) in [
            (TARGET, true, true, true),
            (TARGET, false, true, true),
            (linux, true, true, false),
            (linux, true, false, true),
            (linux, false, false, false),
        ] {
            assert_eq!(skipped(host, may_skip, || is_installed).is_some(), skips, "{host}, {may_skip}");
        }
    }
}
