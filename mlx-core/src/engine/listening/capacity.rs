//! Upper bounds on the memory of windows, in bytes. Invariant: pure.

use mlx_files::size;

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
    /// All bytes that the engine may use, excluding those of freed arrays.
    pub(in crate::engine) budget: u64,
    /// The bytes of the weights.
    pub(in crate::engine) fixed: u64,
}

impl ListeningCapacity {
    /// Returns the capacity of a model with these options. It is an error if not even one window fits.
    pub(in crate::engine) fn of(spec: &ModelSpec, options: &EngineOptions) -> Result<Self> {
        let whisper = spec.whisper.ok_or_else(|| Error::Internal("the model recognizes no speech".into()))?;
        let total = budget(options)?;
        let capacity = Self { spec: whisper, budget: total - cache_limit(total), fixed: spec.weight_bytes };
        let (fixed, one) = (capacity.fixed, capacity.need().total());
        if fixed + one > capacity.budget {
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

    /// Returns the bytes that all windows share.
    pub(in crate::engine) fn shared(&self) -> u64 {
        self.budget - self.fixed
    }

    /// Returns the memory for a window. All windows have the same size.
    pub(in crate::engine) fn need(&self) -> Need {
        Need { own: self.spec.window_bytes, pass: self.spec.pass_bytes }
    }
}
