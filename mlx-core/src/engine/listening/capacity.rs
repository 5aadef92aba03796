//! Upper bounds on the memory of windows, in bytes. Invariant: pure.

use mlx_files::size;

use crate::engine::jobs::JobMemory;
use crate::engine::options::EngineOptions;
use crate::engine::run::memory_budget::budget;
use crate::engine::schedule::Need;
use crate::error::{Error, Result};
use crate::freed::{budget_for, cache_limit};
use crate::model::{ModelSpec, WhisperSpec};

/// The memory that windows share, and the share of each.
#[derive(Debug, Clone)]
pub(in crate::engine) struct ListeningCapacity {
    spec: WhisperSpec,
    pub(in crate::engine) memory: JobMemory,
}

impl ListeningCapacity {
    /// Returns the capacity of a model with these options. It is an error if not even one window fits.
    pub(in crate::engine) fn of(spec: &ModelSpec, options: &EngineOptions) -> Result<Self> {
        let whisper = spec.whisper.ok_or_else(|| Error::Internal("the model recognizes no speech".into()))?;
        let total = budget(options)?;
        let memory = JobMemory { budget: total - cache_limit(total), fixed: spec.weight_bytes };
        let capacity = Self { spec: whisper, memory };
        let (fixed, one) = (memory.fixed, capacity.need().total());
        if fixed + one > memory.budget {
            let message = format!(
                "is {}; the model takes {} and a window of audio {}: give at least {}MiB",
                size(total),
                size(fixed),
                size(one),
                budget_for(fixed + one).div_ceil(1 << 20)
            );
            return Err(Error::option("memory_budget", message));
        }
        Ok(capacity)
    }

    /// Returns the memory for a window. All windows have the same size.
    pub(in crate::engine) fn need(&self) -> Need {
        Need { own: self.spec.window_bytes, pass: self.spec.pass_bytes }
    }
}
