//! The flag that chooses the device.

use clap::Args;
use mlx_core::Result;
use mlx_core::backend::{DeviceKind, use_device};
use serde::{Deserialize, Serialize};

/// The device that models run on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct DeviceArgs {
    /// Device to run on: cpu or gpu [default: the GPU if there is one]
    #[arg(long, value_name = "DEVICE", env = "MLX_DEVICE")]
    pub device: Option<DeviceKind>,
}

impl DeviceArgs {
    /// Selects the device of this process. Call it before any computation.
    pub fn choose(self) -> Result<()> {
        self.device.map_or(Ok(()), use_device)
    }
}
