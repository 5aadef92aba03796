//! The backends of MLX over which the ranks exchange arrays.

use std::ffi::CStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::mlx_sys;
use crate::variant_names::impl_variant_names;

/// A backend of MLX for groups of processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupBackend {
    /// `jaccl` if the hosts file lists RDMA devices and this machine has them, else `ring`.
    #[default]
    Auto,
    /// TCP connections between neighbors.
    Ring,
    /// RDMA over Thunderbolt 5.
    Jaccl,
    /// NVIDIA's NCCL.
    Nccl,
    /// The message passing interface.
    Mpi,
}

impl_variant_names!(GroupBackend, |name| format!(
    "{name:?} is not a backend; use auto, ring, jaccl, nccl or mpi"
));

impl GroupBackend {
    /// MLX's name of the backend.
    pub(super) fn name(self) -> &'static CStr {
        match self {
            Self::Auto => c"any",
            Self::Ring => c"ring",
            Self::Jaccl => c"jaccl",
            Self::Nccl => c"nccl",
            Self::Mpi => c"mpi",
        }
    }

    /// Returns true if the device exchanges arrays, and not the CPU.
    pub(super) fn is_on_device(self) -> bool {
        self == Self::Nccl
    }

    /// Returns true if the ranks meet at an address of rank 0.
    pub(super) fn needs_coordinator(self) -> bool {
        matches!(self, Self::Jaccl | Self::Nccl)
    }

    /// Returns the error for a hosts file without an address of rank 0.
    pub(super) fn no_address(self) -> Error {
        let message =
            format!("is {self}, which needs an IP address of the first host in `ips` of the hosts file");
        Error::option("backend", message)
    }

    /// Refuses a backend that this machine does not have.
    pub(super) fn expect_available(self) -> Result<()> {
        let reason = match self {
            Self::Mpi => "which needs processes that mpirun starts together",
            _ if mlx_sys::has_group_backend(self.name()) => return Ok(()),
            Self::Jaccl => "which this machine lacks; it needs macOS 26.2 and RDMA over Thunderbolt 5",
            Self::Nccl => "which this build of MLX lacks; it needs CUDA",
            Self::Auto | Self::Ring => "which this build of MLX lacks",
        };
        Err(Error::option("backend", format!("is {self}, {reason}; use ring")))
    }
}
