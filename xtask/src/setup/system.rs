//! The differences of the set-up between systems, as a value, so that the macOS steps can be tested on Linux.

use anyhow::{Result, bail};

/// The system that the native libraries are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum System {
    Linux,
    /// Linux with MLX's package and without our kernels.
    Plain,
    /// Linux with an NVIDIA GPU.
    Cuda,
    MacOs,
}

/// OpenBLAS, because MLX's wheel for Linux has the reference BLAS, which is about thirty times slower.
const OPENBLAS: &str = "scipy-openblas32==0.3.34.481.3";
const LIBCLANG: &str = "libclang==18.1.1";
/// The requirements of MLX's wheel for NVIDIA GPUs. libmlx.so expects them next to itself, as installed by pip. Linking needs none of them.
const NVIDIA: [&str; 9] = [
    "nvidia-cuda-runtime==13.5.37",
    "nvidia-cuda-nvrtc==13.5.37",
    "nvidia-cublas==13.10.0.20",
    "nvidia-cudnn-cu13==9.28.1.4",
    "nvidia-cufft==12.5.0.14",
    "nvidia-cusolver==12.4.1.2",
    "nvidia-nccl-cu13==2.32.3",
    // cuSOLVER requires them.
    "nvidia-cusparse==12.9.4.2",
    "nvidia-nvjitlink==13.5.37",
];

impl System {
    /// Returns the system of a target triple.
    pub(crate) fn of(triple: &str) -> Result<Self> {
        match triple {
            "aarch64-apple-darwin" => Ok(Self::MacOs),
            linux if linux.contains("-linux-") => Ok(Self::Linux),
            other => {
                bail!("MLX runs on Macs with Apple silicon and on Linux; there is no build of it for {other}")
            }
        }
    }

    /// Returns this system with an NVIDIA GPU.
    pub(super) fn with_nvidia_gpu(self) -> Result<Self> {
        match self {
            Self::Linux | Self::Plain | Self::Cuda => Ok(Self::Cuda),
            Self::MacOs => bail!("a Mac has no NVIDIA GPU; run `cargo xtask setup` without --cuda"),
        }
    }

    /// Returns this system without our kernels.
    pub(super) fn without_kernels(self) -> Result<Self> {
        match self {
            Self::Linux | Self::Plain | Self::Cuda => Ok(Self::Plain),
            Self::MacOs => {
                bail!("our CPU kernels are not used on a Mac; run `cargo xtask setup` without --plain")
            }
        }
    }

    /// The flag of `cargo xtask setup` that selects it, after a space.
    pub(super) fn flag(self) -> &'static str {
        match self {
            Self::Linux | Self::MacOs => "",
            Self::Plain => " --plain",
            Self::Cuda => " --cuda",
        }
    }

    /// The library that programs link: mlx-c and our sources.
    pub(crate) fn library(self) -> &'static str {
        match self {
            Self::Linux | Self::Plain | Self::Cuda => "libmlxc.so",
            Self::MacOs => "libmlxc.dylib",
        }
    }

    /// The library that parses C headers for the bindings.
    pub(crate) fn libclang(self) -> &'static str {
        match self {
            Self::Linux | Self::Plain | Self::Cuda => "libclang.so",
            Self::MacOs => "libclang.dylib",
        }
    }

    /// The packages as pip requirements: those of our library, libclang, and the dependencies of MLX.
    pub(crate) fn wheels(self, mlx: &str) -> Vec<String> {
        let mut wheels = self.linked_wheels(mlx);
        wheels.push(LIBCLANG.to_owned());
        if self == Self::Cuda {
            wheels.extend(NVIDIA.map(str::to_owned));
        }
        wheels
    }

    /// The packages that our library is linked with: MLX of this version, and OpenBLAS with our kernels.
    pub(crate) fn linked_wheels(self, mlx: &str) -> Vec<String> {
        match self {
            Self::Linux => vec![format!("mlx-cpu=={mlx}"), OPENBLAS.to_owned()],
            Self::Plain => vec![format!("mlx-cpu=={mlx}")],
            Self::Cuda => vec![format!("mlx-cuda-13=={mlx}")],
            Self::MacOs => vec![format!("mlx-metal=={mlx}")],
        }
    }

    /// The file names of our sources that are compiled into the library. The kernels are CPU code, which would take operations away from a
    /// GPU.
    pub(super) fn sources(self) -> &'static [&'static str] {
        match self {
            Self::Linux => &[
                "packed.cpp",
                "block_float.cpp",
                "halves.cpp",
                "blas.cpp",
                "operations.cpp",
                "weight_operations.cpp",
                "pointwise.cpp",
                "moves.cpp",
                "rotation.cpp",
                "row_attention.cpp",
                "clock.cpp",
                "gated_delta.cpp",
            ],
            Self::Plain | Self::Cuda => &["clock.cpp", "gated_delta.cpp"],
            Self::MacOs => &["gated_delta.cpp"],
        }
    }

    /// Returns true if the library contains our kernels, which need a self-check.
    pub(super) fn has_kernels(self) -> bool {
        self == Self::Linux
    }

    /// The package libraries to link with: their folders and names.
    pub(super) fn linked(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Linux => &[("mlx/lib", "mlx"), ("scipy_openblas32/lib", "scipy_openblas")],
            Self::Plain | Self::Cuda | Self::MacOs => &[("mlx/lib", "mlx")],
        }
    }

    /// The search paths of our library: next to itself, as in the set-up and in archives, and two folders up, where pip installs the packages
    /// that `site-packages/mlx_local/lib` needs.
    pub(crate) fn search_paths(self) -> Vec<String> {
        let origin = match self {
            Self::Linux | Self::Plain | Self::Cuda => "$ORIGIN",
            Self::MacOs => "@loader_path",
        };
        let below = |start: &str| {
            let path = |(folder, _): &(&str, &str)| format!("{origin}/{start}{folder}");
            self.linked().iter().map(path).collect::<Vec<_>>()
        };
        ["", "../../"].into_iter().flat_map(below).collect()
    }

    /// The usual compilers, in order of preference.
    pub(super) fn compilers(self) -> &'static [&'static str] {
        match self {
            Self::Linux | Self::Plain | Self::Cuda => &["g++", "clang++", "c++"],
            Self::MacOs => &["clang++"],
        }
    }

    /// The advice for a missing compiler.
    pub(super) fn install_compiler(self) -> &'static str {
        match self {
            Self::Linux | Self::Plain | Self::Cuda => {
                "install a C++20 compiler (on Debian or Ubuntu: `apt install g++`), or name one in the variable CXX"
            }
            Self::MacOs => {
                "install the Command Line Tools with `xcode-select --install`; Xcode is not needed"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_system_or_an_error_that_names_it() {
        assert_eq!(System::of("aarch64-apple-darwin").ok(), Some(System::MacOs));
        assert_eq!(System::of("x86_64-unknown-linux-gnu").ok(), Some(System::Linux));
        assert_eq!(System::Linux.with_nvidia_gpu().ok(), Some(System::Cuda));
        assert_eq!(System::Cuda.without_kernels().ok(), Some(System::Plain));
        assert!(System::MacOs.with_nvidia_gpu().is_err());
        assert!(System::MacOs.without_kernels().is_err());
        let error = System::of("x86_64-apple-darwin").expect_err("no wheel").to_string();
        assert!(error.ends_with("x86_64-apple-darwin"), "{error}");
    }

    #[test]
    fn our_library_finds_packages_next_to_itself_and_in_site_packages() {
        assert_eq!(System::MacOs.search_paths(), ["@loader_path/mlx/lib", "@loader_path/../../mlx/lib"]);
        assert_eq!(
            System::Linux.search_paths(),
            [
                "$ORIGIN/mlx/lib",
                "$ORIGIN/scipy_openblas32/lib",
                "$ORIGIN/../../mlx/lib",
                "$ORIGIN/../../scipy_openblas32/lib",
            ]
        );
        assert_eq!(System::MacOs.wheels("1.2"), ["mlx-metal==1.2", LIBCLANG]);
    }
}
