//! How a model is divided among machines, and what each then has, from the headers of its files.

use std::ops::Range;
use std::path::Path;

use super::divided::{self, Divided, widest};
use super::hosts::MAX_MACHINES;
use super::parallel::Parallel;
use super::split::split;
use crate::error::{Error, Result};
use crate::freed::freed;
use crate::model::{ModelSpec, VisionFootprint};
use crate::weights::WeightPolicy;

/// A model on several machines of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// How it is divided.
    pub parallel: Parallel,
    /// What each has, rank 0 first.
    pub shares: Vec<Share>,
    /// How often the hidden states of a token, or what its norms add up, cross between machines, one time after the other.
    pub crossings: usize,
    /// Bytes of one token's hidden states.
    pub hidden_bytes: u64,
    /// Bytes of a token that rank 0 sends and receives.
    pub token_bytes: u64,
    /// The model as an engine on rank 0 would reckon with it.
    pub(crate) spec: ModelSpec,
    /// Its vision tower.
    pub(crate) vision: Option<VisionFootprint>,
}

/// What one machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Its layers, or those of which it has a part.
    pub layers: Range<usize>,
    /// Bytes of its weights on the device, without those of a vision tower.
    pub weight_bytes: u64,
    /// Bytes that one more token takes in the state of a sequence there.
    pub cache_bytes_per_token: u64,
}

/// Which layers machines with these budgets have, the first of which is rank 0.
fn ranges(divided: &Divided, budgets: &[u64]) -> Result<Vec<Range<usize>>> {
    let (may_begin, is_enough) =
        (|layer| divided.may_begin_at(layer), |range: &Range<usize>| divided.extend_states(range));
    let ends = divided.parts().ends + divided.vision().map_or(0, |vision| vision.weight_bytes);
    split(&divided.parts().layers, ends, budgets, may_begin, is_enough).ok_or_else(|| {
        let message = format!(
            "is {}; the {} layers of this model cannot be divided among so many machines",
            budgets.len(),
            divided.spec().num_layers
        );
        Error::option("ranks", message)
    })
}

/// What machines with these budgets have, the first of which is rank 0.
pub(super) fn shares(divided: &Divided, parallel: Parallel, budgets: &[u64]) -> Result<Vec<divided::Share>> {
    match parallel {
        Parallel::Pipeline => Ok(ranges(divided, budgets)?.iter().map(|it| divided.stage(it)).collect()),
        Parallel::Tensor => (0..budgets.len()).map(|rank| divided.shard(rank, budgets.len())).collect(),
    }
}

/// The plan of the model in `folder` for `ranks` machines of one kind, each of which may take `budget` bytes.
pub(crate) fn plan(
    folder: &Path,
    policy: WeightPolicy,
    (ranks, parallel): (usize, Parallel),
    budget: u64,
) -> Result<Plan> {
    let divided = Divided::open(folder, policy)?;
    let layers = divided.spec().num_layers;
    let (what, most) = match parallel {
        Parallel::Pipeline => (format!("a model of {layers} layers"), layers.min(MAX_MACHINES)),
        Parallel::Tensor => ("a model".to_owned(), MAX_MACHINES),
    };
    if !(2..=most).contains(&ranks) {
        let message = format!("is {ranks}; {what} is divided among 2 to {most} machines");
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
    let room = |share: &Share| (budget - freed(budget)).saturating_sub(share.weight_bytes);
    spec.room_elsewhere = shares[1..].iter().map(room).zip(1..).min();
    let hidden_bytes = divided.spec().hidden_size as u64 * divided.float_bytes();
    let vision = divided.vision();
    // To each machine and back, one after the other; or to all at once, for each sum back and to them again, and back at the end.
    let (crossings, token_bytes) = match parallel {
        Parallel::Pipeline => (2 * (ranks - 1), 2 * (ranks as u64 - 1) * hidden_bytes),
        Parallel::Tensor => {
            let (sums, bytes) = divided.sums();
            (2 + 2 * sums, (ranks as u64 - 1) * (hidden_bytes + 2 * bytes))
        }
    };
    Ok(Plan { parallel, shares, crossings, hidden_bytes, token_bytes, spec, vision })
}
