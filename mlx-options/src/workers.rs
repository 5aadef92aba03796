//! The flags of a model that several machines hold together.

use std::path::PathBuf;

use clap::Args;
use mlx_core::Result;
use mlx_core::distributed::{Key, Workers};
use serde::{Deserialize, Serialize};

use crate::human_units::Seconds;

/// Which other machines hold layers of the model.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct WorkersArgs {
    /// Divide the model among the machines of this file, in the format of mlx.launch; the first is this one, and `mlx worker` runs on each
    /// of the others
    #[arg(long, help_heading = "Several machines", value_name = "FILE", env = "MLX_HOSTFILE")]
    pub hostfile: Option<PathBuf>,

    /// The key that the workers have, too: a file with one line
    #[arg(
        long,
        help_heading = "Several machines",
        value_name = "FILE",
        env = "MLX_WORKER_KEY_FILE",
        requires = "hostfile"
    )]
    pub worker_key_file: Option<PathBuf>,

    /// Give a worker up after so long without a word from it [default: 10]
    #[arg(
        long,
        help_heading = "Several machines",
        value_name = "SECONDS",
        env = "MLX_WORKER_TIMEOUT",
        requires = "hostfile"
    )]
    pub worker_timeout: Option<Seconds>,
}

impl WorkersArgs {
    /// Reads the files.
    pub fn read(&self) -> Result<Option<Workers>> {
        let Some(hostfile) = &self.hostfile else { return Ok(None) };
        let key = self.worker_key_file.as_deref().map(Key::read).transpose()?;
        let mut workers = Workers::read(hostfile, key.unwrap_or_default())?;
        if let Some(timeout) = self.worker_timeout {
            workers.silence = timeout.duration();
        }
        Ok(Some(workers))
    }
}
