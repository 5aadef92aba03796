//! `cargo xtask dist`: makes a release as a relocatable folder, and an archive with its checksum.

mod archive;
mod bill;
mod elf;
pub(crate) mod files;
mod formula;
mod linux;
pub(crate) mod macos;
mod program;
mod release;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::cross_macos::{TARGET as MACOS, VARIANTS, Variant, Workshop};
use crate::setup::{self, Native, system::System};
use crate::workspace;
use release::Release;
use wheel::Wheel;

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

/// Makes `target/dist/mlx-VERSION-TARGET`, its archive and the checksum of the archive; for macOS on Linux, one for each minimum version. With `--wheel`, also a wheel.
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
        fs::remove_dir_all(build_folder(&dist))?;
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
        same if same == host => Ok(make_native),
        MACOS => Ok(make_for_macos),
        other => bail!("--target is {other}; it must be {host} or {MACOS}"),
    }
}

/// Makes the archive for this machine.
fn make_native(root: &Path, dist: &Path, with_wheel: bool) -> Result<Vec<PathBuf>> {
    setup::run()?;
    let Native { host, system, folder, mlx } = setup::native()?;
    ensure!(
        folder.join(system.library()).is_file(),
        "a release needs MLX's packages: run `cargo xtask setup` first"
    );
    let (parts, flags) = match system {
        System::Linux => (linux::PARTS.to_vec(), &linux::FLAGS[..]),
        System::MacOs => {
            let of_mlx = macos::parts_of_mlx(&folder)?;
            ([macos::OURS].into_iter().chain(of_mlx).collect(), &macos::FLAGS[..])
        }
        System::Plain => {
            bail!("a release needs our CPU kernels; run `cargo xtask setup` first")
        }
        System::Cuda => bail!(
            "a release for NVIDIA GPUs would contain 3 GB of NVIDIA's libraries; run `cargo xtask setup` first"
        ),
    };
    let build = build_folder(dist);
    let mut cargo = workspace::cargo();
    cargo.arg("build");
    program::build(cargo, root, &build, &host, flags)?;
    let release = Release {
        name: format!("mlx-{}-{host}", env!("CARGO_PKG_VERSION")),
        target: &host,
        program: build.join("release/mlx"),
        libraries: vec![(folder.clone(), parts)],
        packages: folder.clone(),
        oldest_macos: None,
    };
    let finish = |release: &Path| match system {
        System::MacOs => macos::make_relocatable(release).and_then(|()| macos::check(release, None, None)),
        _ => linux::make_relocatable(release),
    };
    let mut paths = vec![release.make(root, dist, finish)?];
    if with_wheel {
        let release = dist.join(&release.name);
        let platform = if system == System::MacOs {
            macos::check_wheel(&release, &folder, None)?;
            macos::platform(&release)?
        } else {
            linux::check_wheel(&release, &folder)?;
            linux::platform(&release, &host)?
        };
        let requirements = system.linked_wheels(&mlx);
        let wheel = Wheel { release: &release, library: system.library(), requirements, platform };
        paths.push(wheel.make(dist)?);
    }
    Ok(paths)
}

/// Makes the archives for macOS on Linux. They have the same program and the same library of ours.
fn make_for_macos(root: &Path, dist: &Path, with_wheel: bool) -> Result<Vec<PathBuf>> {
    let workshop = Workshop::open()?;
    let build = build_folder(dist);
    program::build(workshop.cargo("build")?, root, &build, MACOS, &macos::CROSS_FLAGS)?;
    let system = workshop.system_symbols()?;
    let name = |variant: &Variant| format!("mlx-{}-{MACOS}-{}", env!("CARGO_PKG_VERSION"), variant.name);
    let archive = |variant| {
        let packages = workshop.unpacked(variant)?;
        let release = Release {
            name: name(variant),
            target: MACOS,
            program: build.join(MACOS).join("release/mlx"),
            libraries: vec![
                (workshop.library(), vec![macos::OURS]),
                (packages.clone(), macos::parts_of_mlx(&packages)?),
            ],
            packages,
            oldest_macos: Some(variant.oldest),
        };
        release.make(root, dist, |folder| macos::check(folder, Some(&system), Some(variant.oldest)))
    };
    let released = VARIANTS.iter().filter(|variant| variant.is_released);
    let mut paths = released.map(archive).collect::<Result<Vec<_>>>()?;
    if with_wheel {
        let release = dist.join(name(&VARIANTS[0]));
        for variant in &VARIANTS {
            macos::check_wheel(&release, &workshop.unpacked(variant)?, Some(&system))
                .with_context(|| format!("with MLX's package for {}", variant.name))?;
        }
        let (requirements, platform) = (workshop.requirements(), macos::platform(&release)?);
        let wheel = Wheel { release: &release, library: macos::OURS, requirements, platform };
        paths.push(wheel.make(dist)?);
    }
    Ok(paths)
}

fn build_folder(dist: &Path) -> PathBuf {
    dist.join("build")
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
