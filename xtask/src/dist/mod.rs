//! `cargo xtask dist`: a release as a folder that can be moved, and as an archive with its checksum.

mod bill;
mod elf;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::setup;
use crate::{process, workspace};

/// Libraries that every Linux has on which MLX's wheel runs; all others are shipped.
const SYSTEM: [&str; 9] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// The folders of the set-up that hold libraries, with what links them.
const LIBRARIES: [&str; 4] = ["libmlxc.so", "mlx/lib", "mlx_cpu.libs", "scipy_openblas32/lib"];

/// Files of the repository that a release has.
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Makes `target/dist/mlx-VERSION-HOST`, its archive and the archive's checksum.
pub(crate) fn run() -> Result<()> {
    setup::run()?;
    let (root, native) = (workspace::root()?, setup::native()?);
    let name = format!("mlx-{}-{}", env!("CARGO_PKG_VERSION"), native.host);
    let dist = root.join("target/dist");
    let release = dist.join(&name);
    if release.exists() {
        fs::remove_dir_all(&release)?;
    }
    fs::create_dir_all(release.join("bin"))?;
    let program = build(&root, &dist)?;
    fs::copy(program, release.join("bin/mlx"))?;
    copy_libraries(&native.folder, &release.join("lib"))?;
    for text in TEXTS {
        fs::copy(root.join(text), release.join(text))?;
    }
    bill::write(&root, &native.host, &native.folder, &release)?;
    fs::write(release.join("install.sh"), include_str!("install.sh"))?;
    make_movable(&release)?;
    let archive = pack(&root, &dist, &name)?;
    println!("{}", archive.display());
    Ok(())
}

/// Builds the program to look for its libraries beside itself, without the paths of this machine.
fn build(root: &Path, dist: &Path) -> Result<PathBuf> {
    let home = std::env::var("CARGO_HOME").map(PathBuf::from).or_else(|_| {
        std::env::var("HOME").map(|home| Path::new(&home).join(".cargo")).context("HOME is not set")
    })?;
    let remapped = |path: &Path, name: &str| format!("--remap-path-prefix={}={name}", path.display());
    let flags = [
        "-Clink-arg=-Wl,-rpath,$ORIGIN/../lib".to_owned(),
        "-Cstrip=symbols".to_owned(),
        remapped(&home, "/cargo"),
        remapped(root, "/mlx"),
    ];
    let target = dist.join("build");
    let mut command = workspace::cargo();
    command
        .args(["build", "--release", "--locked", "--package", "mlx-cli", "--bin", "mlx"])
        .current_dir(root);
    command.env("CARGO_TARGET_DIR", &target).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    // Objects name the time of their sources nowhere else.
    command.env("SOURCE_DATE_EPOCH", commit_time(root)?);
    ensure!(command.status()?.success(), "the program does not build");
    Ok(target.join("release/mlx"))
}

fn copy_libraries(native: &Path, into: &Path) -> Result<()> {
    for part in LIBRARIES {
        let from = native.join(part);
        let files = if from.is_file() { vec![from] } else { files_of(&from)? };
        for file in files.iter().filter(|file| is_library(file)) {
            let to = into.join(file.strip_prefix(native)?);
            fs::create_dir_all(to.parent().context("a library lies in a folder")?)?;
            fs::copy(file, to)?;
        }
    }
    Ok(())
}

fn is_library(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"))
}

/// Lets the programs and libraries find each other wherever the folder lies, and checks that they do, and that nothing else is missing.
fn make_movable(release: &Path) -> Result<()> {
    let files = files_of(release)?;
    let program = release.join("bin/mlx");
    let loaded: Vec<&PathBuf> = files.iter().filter(|file| is_library(file) || **file == program).collect();
    let shipped: Vec<String> = loaded.iter().map(|file| name_of(file)).collect();
    for file in &loaded {
        let mut bytes = fs::read(file)?;
        elf::forget_folders(&mut bytes).with_context(|| file.display().to_string())?;
        let names = elf::names(&bytes)?;
        for needed in &names.needed {
            ensure!(
                shipped.contains(needed) || SYSTEM.contains(&needed.as_str()),
                "{} needs {needed}, which is not part of the release",
                file.display()
            );
        }
        for path in &names.paths {
            ensure!(path.starts_with("$ORIGIN"), "{} looks for libraries in {path}", file.display());
        }
        fs::write(file, bytes)?;
    }
    Ok(())
}

/// Packs the folder; the same files give the same bytes.
fn pack(root: &Path, dist: &Path, name: &str) -> Result<PathBuf> {
    let archive = format!("{name}.tar.gz");
    let time = format!("--mtime=@{}", commit_time(root)?);
    let words = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rw,go+r,go-w", &time];
    let mut tar = Command::new("tar");
    tar.args(words).args(["--use-compress-program=gzip -n -9", "-cf", &archive, name]).current_dir(dist);
    process::output(&mut tar, "install GNU tar")?;
    let mut sum = Command::new("sha256sum");
    let text = process::output(sum.arg(&archive).current_dir(dist), "install coreutils")?;
    fs::write(dist.join(format!("{archive}.sha256")), text)?;
    Ok(dist.join(archive))
}

/// When the newest commit was made, in seconds.
fn commit_time(root: &Path) -> Result<String> {
    let mut git = Command::new("git");
    let text = process::output(git.args(["log", "-1", "--format=%ct"]).current_dir(root), "install git")?;
    Ok(text.trim().to_owned())
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// All files below a folder, in order.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    entries.sort();
    let mut files = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            files.extend(files_of(&entry)?);
        } else {
            files.push(entry);
        }
    }
    Ok(files)
}
