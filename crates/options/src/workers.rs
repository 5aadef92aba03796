//! Flags for a model that is split across several machines.

use std::path::PathBuf;

use clap::Args;
use mlx_core::distributed::{GroupBackend, Key, Parallel, Workers};
use mlx_core::{Error, Result};
use mlx_hub::expanded;
use serde::{Deserialize, Serialize};

use crate::human_units::Seconds;

/// The other machines of a split model, and how it is split.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct WorkersArgs {
    /// Split the model across the machines in this file, in the format of mlx.launch; the first is this machine, and
    /// `mlx worker` runs on each of the others
    #[arg(long, help_heading = "Several machines", value_name = "FILE", env = "MLX_HOSTFILE")]
    pub hostfile: Option<PathBuf>,

    /// Split the model by layers (pipeline, for any model), or split every layer (tensor). With tensor, all machines compute in
    /// parallel and wait twice per layer for the network [default: pipeline]
    #[arg(long, help_heading = "Several machines", value_name = "HOW", env = "MLX_PARALLEL")]
    pub parallel: Option<Parallel>,

    /// Backend of MLX that connects the machines: ring (TCP), jaccl (RDMA over Thunderbolt 5) or nccl (NVIDIA GPUs); auto uses
    /// jaccl if the hosts file lists RDMA devices and this machine has them, else ring [default: auto]
    #[arg(long, help_heading = "Several machines", value_name = "HOW", env = "MLX_BACKEND")]
    pub backend: Option<GroupBackend>,

    /// File with the key that is shared with the workers, on one line
    #[arg(long, help_heading = "Several machines", value_name = "FILE", env = "MLX_WORKER_KEY_FILE")]
    pub worker_key_file: Option<PathBuf>,

    /// Seconds without a message before a worker counts as lost [default: 10]
    #[arg(long, help_heading = "Several machines", value_name = "SECONDS", env = "MLX_WORKER_TIMEOUT")]
    pub worker_timeout: Option<Seconds>,
}

impl WorkersArgs {
    /// Reads the hosts file and the key. Returns `None` without `--hostfile`.
    pub fn read(&self) -> Result<Option<Workers>> {
        let Some(hostfile) = &self.hostfile else { return self.expect_unused().map(|()| None) };
        let key = self.worker_key_file.as_deref().map(|file| Key::read(&expanded(file))).transpose()?;
        let workers = Workers::read(&expanded(hostfile), key.unwrap_or_default())?;
        let (parallel, backend) = (self.parallel.unwrap_or_default(), self.backend.unwrap_or_default());
        let workers = Workers { parallel, backend, ..workers }.resolved()?;
        Ok(Some(match self.worker_timeout {
            Some(timeout) => workers.with_timeout(timeout.duration())?,
            None => workers,
        }))
    }

    /// Rejects flags that have no effect without a hosts file. Values from environment variables are accepted, since
    /// they may be set for `mlx worker`.
    fn expect_unused(&self) -> Result<()> {
        let useless =
            |name| Err(Error::option(name, "is for a model on several machines; give --hostfile too"));
        let variable = |name| std::env::var(name).ok();
        if self.worker_key_file.is_some()
            && self.worker_key_file != variable("MLX_WORKER_KEY_FILE").map(PathBuf::from)
        {
            return useless("worker_key_file");
        }
        if self.worker_timeout.is_some()
            && self.worker_timeout != variable("MLX_WORKER_TIMEOUT").and_then(|text| text.parse().ok())
        {
            return useless("worker_timeout");
        }
        if self.parallel.is_some()
            && self.parallel != variable("MLX_PARALLEL").and_then(|text| text.parse().ok())
        {
            return useless("parallel");
        }
        if self.backend.is_some()
            && self.backend != variable("MLX_BACKEND").and_then(|text| text.parse().ok())
        {
            return useless("backend");
        }
        Ok(())
    }
}
