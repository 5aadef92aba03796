//! A model divided among several machines: loading, unsupported options, and health checks.

use std::path::Path;
use std::sync::Arc;

use super::device::Device;
use super::memory_budget::budget;
use crate::distributed::{self, OnLoss, Workers};
use crate::engine::drafters::Speculate;
use crate::engine::options::EngineOptions;
use crate::error::{Error, Result};
use crate::model::Loaded;
use crate::weights::Progress;

impl Device {
    /// Returns true if other machines hold some layers.
    pub(in crate::engine) fn is_distributed(&self) -> bool {
        self.model(0).is_distributed()
    }

    /// Describes the machine that was lost, if one was, as of the last contact.
    pub(in crate::engine) fn outage(&self) -> Option<String> {
        self.model(0).lost_worker()
    }

    /// Checks that the machines that hold layers respond; see [`Model::check_workers`](crate::model::Model::check_workers).
    pub(in crate::engine) fn check_workers(&self, ask: bool) -> Result<()> {
        self.model(0).check_workers(ask)
    }
}

/// Loads this machine's shard, and makes the workers load theirs.
pub(in crate::engine) fn load_divided(
    folder: &Path,
    workers: &Workers,
    options: &EngineOptions,
    progress: Progress,
) -> Result<Loaded> {
    options.expect_divisible()?;
    let monitor = options.step_monitor.clone();
    let on_loss =
        monitor.map(|monitor| -> OnLoss { Arc::new(move |message: &str| monitor.lost_machine(message)) });
    let (policy, budget) = (options.weights()?, budget(options)?);
    let model = distributed::load(folder, workers, policy, budget, on_loss.as_ref(), progress)?;
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
