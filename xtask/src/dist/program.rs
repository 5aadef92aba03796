//! Builds the program of a release, with relative library paths and without paths of this machine.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{process, setup};

/// Folders of this machine, with the names that replace them in the program and its messages.
pub(super) struct Folders([(PathBuf, &'static str); 3]);

impl Folders {
    /// Returns Cargo's folder with the sources of dependencies, the root of the workspace, and the toolchain. rustup may install the sources
    /// of the standard library in the last one.
    pub(super) fn of(root: &Path) -> Result<Self> {
        let cargo = env::var("CARGO_HOME").map(PathBuf::from).or_else(|_| {
            env::var("HOME").map(|home| Path::new(&home).join(".cargo")).context("HOME is not set")
        })?;
        Ok(Self([(cargo, "/cargo"), (root.to_owned(), "/mlx"), (setup::toolchain()?, "/rust")]))
    }

    /// Returns the options of a compiler that replace the folders.
    fn options(&self, option: &str) -> impl Iterator<Item = String> {
        self.0.iter().map(move |(folder, name)| format!("{option}={}={name}", folder.display()))
    }

    /// Returns the first of the folders in a file's text.
    pub(super) fn find(&self, text: &[u8]) -> Option<&Path> {
        self.0.iter().map(|(folder, _)| folder.as_path()).find(|folder| has_path(text, folder))
    }
}

/// Returns true if an absolute path below `folder` is in the text.
fn has_path(text: &[u8], folder: &Path) -> bool {
    let path = format!("{}/", folder.display()).into_bytes();
    let is_relative = |before: &u8| before.is_ascii_alphanumeric() || b"._-".contains(before);
    text.windows(path.len()).enumerate().any(|(at, window)| {
        window == path && !at.checked_sub(1).is_some_and(|before| is_relative(&text[before]))
    })
}

/// Returns the folder that the program is built in.
pub(super) fn build_folder(dist: &Path) -> PathBuf {
    dist.join("build")
}

/// Runs a command of Cargo that builds the program for `target` into the folder `build`. `flags` are options of Rust's compiler.
pub(super) fn build(
    mut cargo: Command,
    root: &Path,
    build: &Path,
    target: &str,
    flags: &[&str],
) -> Result<()> {
    let folders = Folders::of(root)?;
    let flags = flags.iter().map(|&flag| flag.to_owned());
    let flags = flags.chain(["-Cstrip=symbols".to_owned()]).chain(folders.options("--remap-path-prefix"));
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.collect::<Vec<_>>().join("\u{1f}"));
    // The C code of dependencies, such as onig.
    let given = env::var("CFLAGS").into_iter();
    let of_c = given.chain(folders.options("-ffile-prefix-map")).collect::<Vec<_>>().join(" ");
    cargo.env(format!("CFLAGS_{}", target.replace('-', "_")), of_c);
    cargo.args(["--release", "--locked", "--package", "mlx-cli", "--bin", "mlx"]).current_dir(root);
    // Objects contain no timestamps except the source date.
    cargo.env("CARGO_TARGET_DIR", build).env("SOURCE_DATE_EPOCH", commit_time(root)?);
    ensure!(cargo.status()?.success(), "the program does not build");
    Ok(())
}

/// Returns the time of the newest commit in seconds.
pub(super) fn commit_time(root: &Path) -> Result<String> {
    let mut git = Command::new("git");
    let text = process::output(git.args(["log", "-1", "--format=%ct"]).current_dir(root), "install git")?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_below_a_folder_are_found() {
        let folders = Folders([("/a/b".into(), "/cargo"), ("/c".into(), "/mlx"), ("/d".into(), "/rust")]);
        for (text, found) in [
            ("\0/a/b/x.rs", Some("/a/b")),
            ("error in /c/y.c", Some("/c")),
            ("/d/", Some("/d")),
            ("/a/bc/x.rs and src/c/y.c", None),
            ("/a/b", None),
            ("", None),
        ] {
            assert_eq!(folders.find(text.as_bytes()), found.map(Path::new), "{text}");
        }
        let options: Vec<String> = folders.options("--map").collect();
        assert_eq!(options, ["--map=/a/b=/cargo", "--map=/c=/mlx", "--map=/d=/rust"]);
    }
}
