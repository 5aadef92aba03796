//! Makes the archive, and the wheel, for this machine.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use super::release::Release;
use super::wheel::Wheel;
use super::{linux, macos, program};
use crate::setup::{self, Native, system::System};
use crate::workspace;

/// Makes the archive, and with `with_wheel` a wheel. Returns their paths.
pub(super) fn make(root: &Path, dist: &Path, with_wheel: bool) -> Result<Vec<PathBuf>> {
    setup::run()?;
    let native = setup::native()?;
    let Native { host, system, folder, .. } = &native;
    ensure!(
        folder.join(system.library()).is_file(),
        "a release needs MLX's packages: run `cargo xtask setup` first"
    );
    let (parts, flags) = parts_and_flags(*system, folder)?;
    let build = program::build_folder(dist);
    let mut cargo = workspace::cargo();
    cargo.arg("build");
    program::build(cargo, root, &build, host, flags)?;
    let release = Release {
        name: format!("mlx-{}-{host}", env!("CARGO_PKG_VERSION")),
        target: host,
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
        paths.push(make_wheel(&native, &dist.join(&release.name), dist)?);
    }
    Ok(paths)
}

/// Returns the libraries of a release, and the options of Rust's compiler for its program.
fn parts_and_flags(system: System, folder: &Path) -> Result<(Vec<&'static str>, &'static [&'static str])> {
    match system {
        System::Linux => Ok((linux::PARTS.to_vec(), &linux::FLAGS)),
        System::MacOs => {
            let of_mlx = macos::parts_of_mlx(folder)?;
            Ok(([macos::OURS].into_iter().chain(of_mlx).collect(), &macos::FLAGS))
        }
        System::Plain => bail!("a release needs our CPU kernels; run `cargo xtask setup` first"),
        System::Cuda => bail!(
            "a release for NVIDIA GPUs would contain 3 GB of NVIDIA's libraries; run `cargo xtask setup` first"
        ),
    }
}

/// Makes a wheel with the files of a finished release.
fn make_wheel(native: &Native, release: &Path, dist: &Path) -> Result<PathBuf> {
    let Native { host, system, folder, mlx } = native;
    let platform = if *system == System::MacOs {
        macos::check_wheel(release, folder, None)?;
        macos::platform(release)?
    } else {
        linux::check_wheel(release, folder)?;
        linux::platform(release, host)?
    };
    Wheel { release, library: system.library(), requirements: system.linked_wheels(mlx), platform }.make(dist)
}
