//! A model divided among several machines: loading, and unsupported options.

use std::path::Path;
use std::sync::Arc;

use super::memory_budget::budget;
use crate::distributed::{self, OnLoss, Workers};
use crate::engine::drafters::Speculate;
use crate::engine::options::EngineOptions;
use crate::error::{Error, Result};
use crate::model::Loaded;
use crate::weights::Progress;

/// Loads this machine's shard, and makes the workers load theirs.
pub(in crate::engine) fn load_divided(
    folder: &Path,
    workers: &Workers,
    options: &EngineOptions,
    progress: Progress,
) -> Result<Loaded> {
    options.expect_divisible()?;
    let monitor = options.step_monitor.clone();
    let on_loss: OnLoss = Arc::new(move |message: &str| {
        if let Some(monitor) = &monitor {
            monitor.lost_machine(message);
        }
    });
    let (policy, budget) = (options.weights()?, budget(options)?);
    let model = distributed::load(folder, workers, policy, budget, &on_loss, progress)?;
    Ok(Loaded::with_towers(vec![model], None, folder, options.weights()?))
}

impl EngineOptions {
    /// Refuses options that a model on several machines does not support.
    pub fn expect_divisible(&self) -> Result<()> {
        let beside = |name, what: &str| {
            let message = format!("cannot be used with workers: {what}");
            Err(Error::option(name, message))
        };
        if !self.adapters.is_empty() {
            return beside("adapters", "adapters change layers that are on other machines");
        }
        if self.prompt_cache.is_some() {
            return beside("prompt_cache", "states on other machines are not saved");
        }
        if self.speculate == Speculate::Mtp {
            return beside("speculate", "the head for multi-token prediction is not loaded; use auto");
        }
        Ok(())
    }
}
