//! How a model is divided among machines, and what each then has, from the headers of its files.

use std::ops::Range;
use std::path::Path;

use super::divided::Divided;
use super::hosts::MAX_MACHINES;
use super::split::split;
use crate::error::{Error, Result};
use crate::freed::freed;
use crate::model::{ModelSpec, VisionFootprint};
use crate::weights::WeightPolicy;

/// A model on several machines of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What each has, rank 0 first.
    pub shares: Vec<Share>,
    /// How often the hidden states of a token cross between two machines.
    pub crossings: usize,
    /// Bytes of one token's hidden states.
    pub hidden_bytes: u64,
    /// The model as an engine on rank 0 would reckon with it.
    pub(crate) spec: ModelSpec,
    /// Its vision tower.
    pub(crate) vision: Option<VisionFootprint>,
}

/// What one machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Its layers.
    pub layers: Range<usize>,
    /// Bytes of its weights on the device, without those of a vision tower.
    pub weight_bytes: u64,
    /// Bytes that one more token takes in the state of a sequence there.
    pub cache_bytes_per_token: u64,
}

/// Which layers machines with these budgets have, the first of which is rank 0.
pub(super) fn ranges(divided: &Divided, budgets: &[u64]) -> Result<Vec<Range<usize>>> {
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

/// The plan of the model in `folder` for `ranks` machines of one kind, each of which may take `budget` bytes.
pub(crate) fn plan(folder: &Path, policy: WeightPolicy, ranks: usize, budget: u64) -> Result<Plan> {
    let divided = Divided::open(folder, policy)?;
    let most = divided.spec().num_layers.min(MAX_MACHINES);
    if !(2..=most).contains(&ranks) {
        let layers = divided.spec().num_layers;
        let message = format!("is {ranks}; a model of {layers} layers is divided among 2 to {most} machines");
        return Err(Error::option("ranks", message));
    }
    let ranges = ranges(&divided, &vec![1; ranks])?;
    let share = |layers: &Range<usize>| {
        let cache_bytes_per_token = divided.footprint(layers).per_token;
        Share { layers: layers.clone(), weight_bytes: divided.bytes(layers), cache_bytes_per_token }
    };
    let shares: Vec<Share> = ranges.iter().map(share).collect();
    let mut spec = divided.spec().clone();
    spec.weight_bytes = shares[0].weight_bytes;
    spec.footprint = divided.widest_footprint(&ranges);
    let room = |share: &Share| (budget - freed(budget)).saturating_sub(share.weight_bytes);
    spec.room_elsewhere = shares[1..].iter().map(room).zip(1..).min();
    let hidden_bytes = divided.spec().hidden_size as u64 * divided.float_bytes();
    let vision = divided.vision();
    Ok(Plan { shares, crossings: 2 * (ranks - 1), hidden_bytes, spec, vision })
}
