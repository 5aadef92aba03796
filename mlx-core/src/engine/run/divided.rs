//! Loads a model that is divided among several machines.

use std::path::Path;
use std::sync::Arc;

use super::memory_budget::budget;
use crate::distributed::{self, OnLoss, RankZero, Workers};
use crate::engine::options::EngineOptions;
use crate::error::Result;
use crate::model::{Loaded, ModelSpec};
use crate::weights::Progress;

/// Loads this machine's shard and, if `with_mtp`, the MTP head, and makes the workers load theirs. `draft` is the head or the model that
/// drafts.
pub(in crate::engine) fn load_divided(
    folder: &Path,
    workers: &Workers,
    options: &EngineOptions,
    (with_mtp, draft): (bool, Option<&ModelSpec>),
    progress: Progress,
) -> Result<Loaded> {
    let monitor = options.step_monitor.clone();
    let on_loss: OnLoss = Arc::new(move |message: &str| {
        if let Some(monitor) = &monitor {
            monitor.lost_machine(message);
        }
    });
    let (policy, budget) = (options.weights()?, budget(options)?);
    let draft_bytes = draft.map_or(0, |draft| draft.weight_bytes);
    let here = RankZero { policy, budget, with_mtp, draft_bytes, adapters: options.adapters.clone() };
    let (models, mtp) = distributed::load(folder, workers, &here, &on_loss, progress)?;
    Ok(Loaded::with_towers(models, mtp, folder, policy))
}
