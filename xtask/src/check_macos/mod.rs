//! `cargo xtask check-macos`: checks macOS support on Linux. Type-checks the whole workspace. Makes our library with each of MLX's packages for
//! Macs, and reads the result.

mod library;

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cross_macos::{TARGET, Workshop};
use crate::process::output;
use crate::{setup, workspace};

/// Checks all packages with the bindings of this machine's set-up, which have the same functions. Skips the check on a Mac with a message;
/// with `may_skip`, also on a machine without Rust's library for macOS.
pub(crate) fn run(may_skip: bool) -> Result<()> {
    if let Some(why) = skipped(&setup::host()?, may_skip, is_installed) {
        println!("skipped the check for macOS: {why}");
        return Ok(());
    }
    let workshop = Workshop::open()?;
    library::check(&workshop, &workspace::root()?.join("target/check-macos"))?;
    let status = workshop.cargo("check")?.arg("--workspace").status()?;
    ensure!(status.success(), "the workspace does not compile for macOS; see above");
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
