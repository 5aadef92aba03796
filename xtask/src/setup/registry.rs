//! Cargo's source folders of dependencies, its target triple, and the folder of the toolchain.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{process, workspace::cargo};

/// A package of the dependency graph.
pub(super) struct Package {
    pub(super) version: String,
    pub(super) folder: PathBuf,
}

/// Returns the target triple of this machine.
pub(super) fn host() -> Result<String> {
    let text = rustc(&["-vV"])?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` does not name the host")?.to_owned())
}

/// Returns the folder of Rust's toolchain.
pub(super) fn toolchain() -> Result<PathBuf> {
    Ok(PathBuf::from(rustc(&["--print", "sysroot"])?.trim()))
}

fn rustc(words: &[&str]) -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    process::output(Command::new(rustc).args(words), "install rust")
}

/// Finds a dependency of the workspace, after Cargo has downloaded it.
pub(super) fn package(root: &Path, name: &str, host: &str) -> Result<Package> {
    let mut command = cargo();
    command.args(["metadata", "--format-version", "1", "--filter-platform", host]).current_dir(root);
    let text = process::output(&mut command, "run this as `cargo xtask`")?;
    let metadata: Value = serde_json::from_str(&text).context("`cargo metadata` printed no valid json")?;
    find_package(&metadata, name)
}

fn find_package(metadata: &Value, name: &str) -> Result<Package> {
    let mut found =
        metadata["packages"].as_array().into_iter().flatten().filter(|package| package["name"] == name);
    let package = found.next().with_context(|| format!("no dependency is called {name}"))?;
    ensure!(found.next().is_none(), "two versions of {name} are in Cargo.lock; only one can be linked");
    let text =
        |key: &str| package[key].as_str().with_context(|| format!("`cargo metadata`: {name} has no {key}"));
    let manifest = Path::new(text("manifest_path")?);
    let folder = manifest.parent().with_context(|| format!("{name} has no folder"))?.to_owned();
    Ok(Package { version: text("version")?.to_owned(), folder })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_package_is_found_once_or_not_at_all() {
        let package = json!({"name": "b", "version": "0.7.0", "manifest_path": "/registry/b/Cargo.toml"});
        let metadata = json!({"packages": [{"name": "a"}, package.clone()]});
        let found = find_package(&metadata, "b").expect("b is there");
        assert_eq!((found.version.as_str(), found.folder.as_path()), ("0.7.0", Path::new("/registry/b")));
        assert!(find_package(&metadata, "c").is_err());
        assert!(find_package(&json!({"packages": [package.clone(), package]}), "b").is_err());
    }
}
