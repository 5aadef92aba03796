//! `cargo xtask dist`: makes a release as a relocatable folder, and an archive with its checksum.

mod archive;
mod bill;
mod cross;
mod elf;
pub(crate) mod files;
mod formula;
mod linux;
pub(crate) mod macos;
mod native;
mod program;
mod release;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use crate::cross_macos::{TARGET as MACOS, Workshop};
use crate::{setup, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The system of the release instead of this one: aarch64-apple-darwin, on Linux
    #[arg(long)]
    target: Option<String>,
    /// The future URL of the archives; also writes mlx-cli.rb, a Homebrew formula for the archives in target/dist
    #[arg(long)]
    url: Option<String>,
    /// Also make a Python wheel, which requires MLX's own packages
    #[arg(long)]
    wheel: bool,
    /// Build twice and fail unless the archives are identical
    #[arg(long)]
    twice: bool,
}

/// Makes `target/dist/mlx-VERSION-TARGET`, its archive and the archive's checksum. Makes two of them for macOS on Linux, one for each minimum
/// version. With `--wheel`, also makes a wheel.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let host = setup::host()?;
    let target = arguments.target.as_deref().unwrap_or(&host);
    let root = workspace::root()?;
    let dist = root.join("target/dist");
    let make = maker(target, &host)?;
    let paths = make(&root, &dist, arguments.wheel)?;
    if arguments.twice {
        let sums = || paths.iter().map(|path| archive::checksum(path)).collect::<Result<Vec<_>>>();
        let first = sums()?;
        fs::remove_dir_all(program::build_folder(&dist))?;
        if target != host {
            Workshop::open()?.discard_objects()?;
        }
        make(&root, &dist, arguments.wheel)?;
        let second = sums()?;
        ensure!(first == second, "the archives differ: {first:?} and {second:?}");
        println!("both builds are identical: {}", first.join(", "));
    }
    if let Some(url) = &arguments.url {
        formula::write(&dist, url)?;
    }
    for path in paths {
        println!("{}", path.display());
    }
    Ok(())
}

/// A function that makes the archives of a target, and with `true` a wheel.
type Maker = fn(&Path, &Path, bool) -> Result<Vec<PathBuf>>;

fn maker(target: &str, host: &str) -> Result<Maker> {
    match target {
        same if same == host => Ok(native::make),
        MACOS => Ok(cross::make),
        other => bail!("--target is {other}; it must be {host} or {MACOS}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_for_this_system_or_for_macos() {
        let linux = "x86_64-unknown-linux-gnu";
        for (target, host) in [(linux, linux), (MACOS, MACOS), (MACOS, linux)] {
            maker(target, host).expect("it can be made");
        }
        let error = maker("x86_64-apple-darwin", linux).expect_err("no package of MLX").to_string();
        assert!(error.contains(MACOS) && error.contains(linux), "{error}");
    }
}
