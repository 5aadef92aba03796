//! The workspace, as reported by Cargo.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::process;

/// Returns a command of the Cargo that runs this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo run` sets variables about the package xtask, which another Cargo must not inherit.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "LD_LIBRARY_PATH"
        {
            command.env_remove(&name);
        }
    }
    command
}

/// Returns the folder of the workspace's Cargo.toml. It is located at run time, because a clone may be moved without a rebuild.
pub(crate) fn root() -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["locate-project", "--workspace", "--message-format", "plain"]);
    if let Some(package) = env::var_os("CARGO_MANIFEST_DIR") {
        command.current_dir(package);
    }
    let manifest = process::output(&mut command, "run this as `cargo xtask`")?;
    let folder = Path::new(manifest.trim_end()).parent().context("the workspace has no folder")?;
    Ok(folder.canonicalize()?)
}
