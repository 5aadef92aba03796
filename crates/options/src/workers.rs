//! The flags of a model that several machines hold together.

use std::path::PathBuf;

use clap::Args;
use mlx_core::distributed::{Key, Parallel, Workers};
use mlx_core::{Error, Result};
use mlx_hub::expanded;
use serde::{Deserialize, Serialize};

use crate::human_units::Seconds;

/// Which other machines hold a part of the model, and which.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct WorkersArgs {
    /// Divide the model among the machines of this file, in the format of mlx.launch; the first is this one, and `mlx worker` runs on each
    /// of the others
    #[arg(long, help_heading = "Several machines", value_name = "FILE", env = "MLX_HOSTFILE")]
    pub hostfile: Option<PathBuf>,

    /// How the model is divided: pipeline (some layers each; any model), or tensor (a part of every layer each, all at work at the same
    /// time, and two waits a layer for the network) [default: pipeline]
    #[arg(long, help_heading = "Several machines", value_name = "HOW", env = "MLX_PARALLEL")]
    pub parallel: Option<Parallel>,

    /// The key that the workers have, too: a file with one line
    #[arg(long, help_heading = "Several machines", value_name = "FILE", env = "MLX_WORKER_KEY_FILE")]
    pub worker_key_file: Option<PathBuf>,

    /// Seconds without a message before a worker counts as lost [default: 10]
    #[arg(long, help_heading = "Several machines", value_name = "SECONDS", env = "MLX_WORKER_TIMEOUT")]
    pub worker_timeout: Option<Seconds>,
}

impl WorkersArgs {
    /// Reads the files.
    pub fn read(&self) -> Result<Option<Workers>> {
        let Some(hostfile) = &self.hostfile else { return self.expect_unused().map(|()| None) };
        let key = self.worker_key_file.as_deref().map(|file| Key::read(&expanded(file))).transpose()?;
        let workers = Workers::read(&expanded(hostfile), key.unwrap_or_default())?;
        let workers = Workers { parallel: self.parallel.unwrap_or_default(), ..workers };
        Ok(Some(match self.worker_timeout {
            Some(timeout) => workers.with_timeout(timeout.duration())?,
            None => workers,
        }))
    }

    /// Refuses what says nothing without a hosts file. Variables may be there for other commands, as for `mlx worker`.
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
        Ok(())
    }
}
