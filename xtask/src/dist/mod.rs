//! `cargo xtask dist`: makes a release as a relocatable folder, and an archive with its checksum.

mod archive;
mod bill;
mod elf;
pub(crate) mod files;
mod formula;
mod linux;
pub(crate) mod macos;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::setup;
use crate::setup::system::System;
use crate::{process, workspace};

/// Files of the repository in a release.
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The future URL of the archives; also writes mlx-cli.rb, a Homebrew formula for the archives in target/dist
    #[arg(long)]
    url: Option<String>,
    /// Build twice and fail unless the archives are identical
    #[arg(long)]
    twice: bool,
}

/// Makes `target/dist/mlx-VERSION-HOST`, its archive and the checksum of the archive.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run()?;
    let (root, native) = (workspace::root()?, setup::native()?);
    ensure!(
        native.folder.join(native.system.library()).is_file(),
        "a release needs MLX's packages: run `cargo xtask setup` first"
    );
    let dist = root.join("target/dist");
    let path = make(&root, &native, &dist)?;
    if arguments.twice {
        let first = archive::checksum(&path)?;
        fs::remove_dir_all(build_folder(&dist))?;
        make(&root, &native, &dist)?;
        let second = archive::checksum(&path)?;
        ensure!(first == second, "the archives differ: {first} and {second}");
        println!("both builds are identical: {first}");
    }
    if let Some(url) = &arguments.url {
        formula::write(&dist, url)?;
    }
    println!("{}", path.display());
    Ok(())
}

fn make(root: &Path, native: &setup::Native, dist: &Path) -> Result<PathBuf> {
    let name = format!("mlx-{}-{}", env!("CARGO_PKG_VERSION"), native.host);
    let release = dist.join(&name);
    if release.exists() {
        fs::remove_dir_all(&release)?;
    }
    fs::create_dir_all(release.join("bin"))?;
    let (parts, flags) = match native.system {
        System::Linux => (&linux::PARTS[..], &linux::FLAGS[..]),
        System::MacOs => (&macos::PARTS[..], &macos::FLAGS[..]),
        System::Plain => {
            bail!("a release needs our CPU kernels; run `cargo xtask setup` first")
        }
        System::Cuda => bail!(
            "a release for NVIDIA GPUs would contain 3 GB of NVIDIA's libraries; run `cargo xtask setup` first"
        ),
    };
    fs::copy(build(root, dist, flags)?, release.join("bin/mlx"))?;
    files::copy(parts, &native.folder, &release.join("lib"))?;
    for text in TEXTS {
        fs::copy(root.join(text), release.join(text))?;
    }
    bill::write(root, &native.host, &native.folder, &release)?;
    fs::write(release.join("install.sh"), include_str!("install.sh"))?;
    make_executable(&release.join("install.sh"))?;
    match native.system {
        System::MacOs => macos::make_relocatable(&release)?,
        _ => linux::make_relocatable(&release)?,
    }
    archive::pack(dist, &name, commit_time(root)?.parse()?)
}

/// Builds the program with relative library paths, and without paths of this machine.
fn build(root: &Path, dist: &Path, flags: &[&str]) -> Result<PathBuf> {
    let home = std::env::var("CARGO_HOME").map(PathBuf::from).or_else(|_| {
        std::env::var("HOME").map(|home| Path::new(&home).join(".cargo")).context("HOME is not set")
    })?;
    let remapped = |path: &Path, name: &str| format!("--remap-path-prefix={}={name}", path.display());
    let mut flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    flags.extend(["-Cstrip=symbols".to_owned(), remapped(&home, "/cargo"), remapped(root, "/mlx")]);
    let target = build_folder(dist);
    let mut command = workspace::cargo();
    command
        .args(["build", "--release", "--locked", "--package", "mlx-cli", "--bin", "mlx"])
        .current_dir(root);
    command.env("CARGO_TARGET_DIR", &target).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    // Objects contain no timestamps except the source date.
    command.env("SOURCE_DATE_EPOCH", commit_time(root)?);
    ensure!(command.status()?.success(), "the program does not build");
    Ok(target.join("release/mlx"))
}

fn build_folder(dist: &Path) -> PathBuf {
    dist.join("build")
}

fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}

/// Returns the time of the newest commit in seconds.
fn commit_time(root: &Path) -> Result<String> {
    let mut git = Command::new("git");
    let text = process::output(git.args(["log", "-1", "--format=%ct"]).current_dir(root), "install git")?;
    Ok(text.trim().to_owned())
}
