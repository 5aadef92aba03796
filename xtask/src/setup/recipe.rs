//! The inputs and the output folder of a build. They decide if an earlier build is up to date.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use super::{
    registry::{self, Package},
    system::System,
};
use crate::workspace;

/// The version of the build steps. Raise it when they change; changes of the helper sources are detected automatically.
const VERSION: u32 = 3;

/// The version of the MLX packages to link.
const MLX: &str = "0.32.4";

/// The version of MLX that mlx-c's sources were written for. crates/mlx-extra/newer_mlx.h adapts them to [`MLX`].
const MLX_OF_MLX_C: &str = "0.32.2";

/// Expands to the names and texts of files in crates.
macro_rules! files {
    ($($folder:literal: [$($name:literal,)*],)*) => {
        &[$($(($name, include_str!(concat!("../../../crates/", $folder, "/", $name))),)*)*]
    };
}

/// The sources that are compiled together with mlx-c's.
const HELPERS: &[(&str, &str)] = files![
    "cpu-kernels": [
        "portability.h",
        "registers.h",
        "lanes.h",
        "processors.h",
        "workers.h",
        "blas.h",
        "blas.cpp",
        "ahead.h",
        "by_columns.h",
        "few_rows.h",
        "tiles.h",
        "formats.h",
        "packed.h",
        "packed_formats.h",
        "products.h",
        "weights.h",
        "block_float.h",
        "block_float_left.h",
        "block_float_right.h",
        "block_float.cpp",
        "halves.cpp",
        "packed.cpp",
        "pointwise.h",
        "pointwise.cpp",
        "operands.h",
        "operations.h",
        "operations.cpp",
        "moves.h",
        "moves.cpp",
        "rotation.cpp",
        "row_attention.cpp",
        "weight_operations.cpp",
        "clock.cpp",
        "self_check_operations.h",
        "self_check_moves.h",
        "self_check.cpp",
    ],
    "mlx-extra": [
        "newer_mlx.h",
        "gated_delta.cpp",
    ],
];

pub(crate) struct Recipe {
    pub(super) host: String,
    pub(super) system: System,
    /// The version of MLX.
    pub(crate) mlx: String,
    /// `<root>/target/native`, wherever Cargo's own target folder is. The include in .cargo/config.toml fixes this path.
    pub(super) native: PathBuf,
    /// The output folder of this build.
    pub(crate) folder: PathBuf,
    /// The sources of mlx-c, in Cargo's registry folder.
    pub(crate) mlx_c: PathBuf,
}

impl Recipe {
    /// Returns the recipe for this machine, without an NVIDIA GPU and with our kernels.
    pub(crate) fn new() -> Result<Self> {
        Self::with(Ok)
    }

    /// Returns the recipe of MLX for NVIDIA GPUs.
    pub(super) fn cuda() -> Result<Self> {
        Self::with(System::with_nvidia_gpu)
    }

    /// Returns the recipe of MLX's package without our kernels.
    pub(super) fn plain() -> Result<Self> {
        Self::with(System::without_kernels)
    }

    /// Returns the recipe that was last selected.
    pub(super) fn selected() -> Result<Self> {
        let recipe = Self::new()?;
        let config = fs::read_to_string(recipe.cargo_config()).unwrap_or_default();
        match () {
            () if config.starts_with(&beginning(System::Cuda)) => Self::cuda(),
            () if config.starts_with(&beginning(System::Plain)) => Self::plain(),
            () => Ok(recipe),
        }
    }

    fn with(choose: impl FnOnce(System) -> Result<System>) -> Result<Self> {
        let root = workspace::root()?;
        let host = registry::host()?;
        let package = registry::package(&root, "mlx-sys", &host)?;
        let mlx_c = package.folder.join("src/mlx-c");
        check_mlx_c(&mlx_c)?;
        let mlx = MLX.to_owned();
        let native = root.join("target/native");
        let system = choose(System::of(&host)?)?;
        let folder = native.join(format!("mlx-{mlx}-{:016x}", fingerprint(&root, &package, &host, system)));
        Ok(Self { host, system, mlx, native, folder, mlx_c })
    }

    /// The file that points Cargo to the build. It is written last, so it also marks a finished build.
    pub(super) fn cargo_config(&self) -> PathBuf {
        self.native.join("cargo.toml")
    }

    /// Returns the first line of that file.
    pub(super) fn headline(&self) -> String {
        format!("{} `cargo clean` removes it.", beginning(self.system))
    }
}

/// Writes our sources into the folder of a build.
pub(crate) fn write_helpers(build: &Path) -> Result<()> {
    let folder = build.join("helpers");
    fs::create_dir_all(&folder)?;
    for (name, text) in HELPERS {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

fn beginning(system: System) -> String {
    format!("# Written by `cargo xtask setup{}`;", system.flag())
}

/// Returns a hash of all inputs. It includes the folders, because libraries and bindings contain absolute paths.
fn fingerprint(root: &Path, package: &Package, host: &str, system: System) -> u64 {
    let mut hasher = DefaultHasher::new();
    let wheels = system.wheels("");
    (VERSION, HELPERS, wheels, root, &package.version, &package.folder, host).hash(&mut hasher);
    hasher.finish()
}

/// Fails if this mlx-c was written for another version of MLX than newer_mlx.h supports.
fn check_mlx_c(mlx_c: &Path) -> Result<()> {
    let path = mlx_c.join("CMakeLists.txt");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let tag = find_tag(&text).with_context(|| format!("{} has no `GIT_TAG v…` of MLX", path.display()))?;
    ensure!(
        tag == MLX_OF_MLX_C,
        "{} is for MLX {tag}; MLX {MLX} is linked with an mlx-c for {MLX_OF_MLX_C}. Change the versions in \
         xtask/src/setup/recipe.rs and check crates/mlx-extra/newer_mlx.h",
        path.display()
    );
    Ok(())
}

fn find_tag(cmake: &str) -> Option<String> {
    let tag = cmake.split_whitespace().skip_while(|word| *word != "GIT_TAG").nth(1)?;
    let version = tag.trim_end_matches(')').strip_prefix('v')?;
    version.starts_with(|first: char| first.is_ascii_digit()).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_read_from_cmake() {
        assert_eq!(find_tag("FetchContent_Declare(\n mlx\n GIT_TAG v0.32.2)\n"), Some("0.32.2".to_owned()));
        assert_eq!(find_tag("GIT_TAG v1.0.0\n)"), Some("1.0.0".to_owned()));
        assert_eq!(find_tag("GIT_TAG main)"), None);
        assert_eq!(find_tag("project(mlx)"), None);
    }
}
