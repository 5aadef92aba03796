//! Plans the division of a model among machines, from the headers of its files.

use std::ops::Range;
use std::path::Path;

use super::divided::{self, Divided, widest};
use super::hosts::MAX_MACHINES;
use super::parallel::Parallel;
use super::rank_zero::RankZero;
use super::split::split;
use crate::error::{Error, Result};
use crate::freed::cache_limit;
use crate::model::{ModelSpec, TowerFootprints};

/// The division of a model among equal machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The way the model is divided.
    pub parallel: Parallel,
    /// The share of each machine, rank 0 first.
    pub shares: Vec<Share>,
    /// The number of consecutive transfers between machines per token, of hidden states or of sums.
    pub crossings: usize,
    /// The number of sums per token, and their bytes.
    pub sums: (usize, u64),
    /// Bytes of one token's hidden states.
    pub hidden_bytes: u64,
    /// Bytes that rank 0 sends and receives per token.
    pub token_bytes: u64,
    /// True if a token reads only some of the experts' weights.
    pub is_mixture: bool,
    /// The spec of the model for an engine on rank 0.
    pub(crate) spec: ModelSpec,
    /// The footprints of its towers.
    pub(crate) towers: TowerFootprints,
}

/// The share of one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The machine's layers, or the layers that it has a shard of.
    pub layers: Range<usize>,
    /// Bytes of its weights on the device, without a vision tower.
    pub weight_bytes: u64,
    /// Bytes that one more token takes in a sequence's state on this machine.
    pub cache_bytes_per_token: u64,
}

/// Returns the layers of machines with these budgets, rank 0 first.
fn ranges(divided: &Divided, budgets: &[u64]) -> Result<Vec<Range<usize>>> {
    let (may_begin, is_enough) =
        (|layer| divided.may_begin_at(layer), |range: &Range<usize>| divided.extend_states(range));
    split(&divided.parts().layers, divided.bytes_on_rank_zero(), budgets, may_begin, is_enough).ok_or_else(
        || {
            let message = format!(
                "is {}; the {} layers of this model cannot be divided among that many machines",
                budgets.len(),
                divided.spec().num_layers
            );
            Error::option("ranks", message)
        },
    )
}

/// Returns the shares of machines with these budgets, rank 0 first.
pub(super) fn shares(divided: &Divided, parallel: Parallel, budgets: &[u64]) -> Result<Vec<divided::Share>> {
    match parallel {
        Parallel::Pipeline => ranges(divided, budgets)?.iter().map(|it| divided.stage(it)).collect(),
        Parallel::Tensor => (0..budgets.len()).map(|rank| divided.shard(rank, budgets.len())).collect(),
    }
}

/// Plans the model in `folder` for `ranks` machines like this one.
pub(crate) fn plan(folder: &Path, (ranks, parallel): (usize, Parallel), here: &RankZero) -> Result<Plan> {
    let RankZero { policy, budget, .. } = *here;
    let divided =
        Divided::open(folder, policy)?.with_draft(here.draft_bytes).with_adapters(&here.adapters)?;
    let layers = divided.spec().num_layers;
    let (what, most) = match parallel {
        Parallel::Pipeline => (format!("a model of {layers} layers"), layers.min(MAX_MACHINES)),
        Parallel::Tensor => ("a model".to_owned(), MAX_MACHINES),
    };
    if !(2..=most).contains(&ranks) {
        let message = format!("is {ranks}; {what} can be divided among 2 to {most} machines");
        return Err(Error::option("ranks", message));
    }
    let shares = shares(&divided, parallel, &vec![1; ranks])?;
    let mut spec = divided.spec().clone();
    spec.footprint = widest(&shares).unwrap_or(spec.footprint);
    let share = |share: divided::Share| Share {
        layers: share.part.layers,
        weight_bytes: share.weight_bytes,
        cache_bytes_per_token: share.footprint.per_token,
    };
    let shares: Vec<Share> = shares.into_iter().map(share).collect();
    spec.weight_bytes = shares[0].weight_bytes;
    let room = |share: &Share| (budget - cache_limit(budget)).saturating_sub(share.weight_bytes);
    spec.remote_capacity = shares[1..].iter().map(room).zip(1..).min();
    let hidden_bytes = divided.spec().hidden_size as u64 * divided.float_bytes();
    let towers = divided.towers();
    // Pipeline: once around the ring. Tensor: from rank to rank, then around the ring for each sum. Two machines exchange halves of a sum and
    // then of the result; more pass on whole terms.
    let (crossings, token_bytes, sums) = match parallel {
        Parallel::Pipeline => (ranks, 2 * hidden_bytes, (0, 0)),
        Parallel::Tensor => {
            let (sums, bytes) = divided.sums(ranks);
            let steps = if ranks == 2 { 2 } else { ranks - 1 };
            (ranks - 1 + steps * sums, hidden_bytes + (ranks as u64 - 1) * 2 * bytes, (sums, bytes))
        }
    };
    let is_mixture = divided.is_mixture();
    Ok(Plan { parallel, shares, crossings, sums, hidden_bytes, token_bytes, is_mixture, spec, towers })
}
