//! Makes the archives, and the wheel, for macOS on Linux.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::release::Release;
use super::wheel::Wheel;
use super::{macos, program};
use crate::cross_macos::{TARGET, VARIANTS, Variant, Workshop};

/// Makes one archive per minimum version, with the same program and the same libmlxc. With `with_wheel`, also makes a wheel. Returns their
/// paths.
pub(super) fn make(root: &Path, dist: &Path, with_wheel: bool) -> Result<Vec<PathBuf>> {
    let workshop = Workshop::open()?;
    let build = program::build_folder(dist);
    program::build(workshop.cargo("build")?, root, &build, TARGET, &macos::CROSS_FLAGS)?;
    let system = workshop.system_symbols()?;
    let archive = |variant: &Variant| {
        let packages = workshop.unpacked(variant)?;
        let release = Release {
            name: name(variant),
            target: TARGET,
            program: build.join(TARGET).join("release/mlx"),
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
        paths.push(make_wheel(&workshop, dist)?);
    }
    Ok(paths)
}

/// Makes a wheel with the program of the first archive, after a check with each of MLX's packages.
fn make_wheel(workshop: &Workshop, dist: &Path) -> Result<PathBuf> {
    let release = dist.join(name(&VARIANTS[0]));
    let system = workshop.system_symbols()?;
    for variant in &VARIANTS {
        macos::check_wheel(&release, &workshop.unpacked(variant)?, Some(&system))
            .with_context(|| format!("with MLX's package for {}", variant.name))?;
    }
    let (requirements, platform) = (workshop.requirements(), macos::platform(&release)?);
    Wheel { release: &release, library: macos::OURS, requirements, platform }.make(dist)
}

fn name(variant: &Variant) -> String {
    format!("mlx-{}-{TARGET}-{}", env!("CARGO_PKG_VERSION"), variant.name)
}
