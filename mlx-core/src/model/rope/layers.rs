//! The ropes of a model's layers.

use mlx_rs::Array;

use super::config::RopeConfig;
use super::constants::Rope;
use super::rotary::{LongRows, Rotary};
use crate::backend::Backend;
use crate::error::Result;

/// Ropes of fewer numbers are narrow; see [`Backend::fused_narrow_rope`].
const NARROW: i32 = 32;

/// The ropes of all layers, each once.
pub(in crate::model) struct Ropes {
    distinct: Vec<Rope>,
    /// The index of each layer's rope, if it has one.
    of_layers: Vec<Option<usize>>,
}

impl Ropes {
    /// For layers with these ropes, of which the backend says whether each is one operation.
    pub(in crate::model) fn new<'a>(
        layers: impl Iterator<Item = Option<&'a RopeConfig>>,
        backend: Backend,
    ) -> Self {
        let mut configs: Vec<&RopeConfig> = Vec::new();
        let mut index = |config| {
            configs.iter().position(|&other| other == config).unwrap_or_else(|| {
                configs.push(config);
                configs.len() - 1
            })
        };
        let of_layers = layers.map(|rope| rope.map(&mut index)).collect();
        let rope = |config| {
            let mut rope = Rope::new(config, backend.fused_rope);
            rope.fused &= rope.dims >= NARROW || backend.fused_narrow_rope;
            rope
        };
        let distinct = configs.into_iter().map(rope).collect();
        Self { distinct, of_layers }
    }

    /// The rotation of a pass's rows by each rope; positions are `[T]`.
    pub(in crate::model) fn rotary(&self, positions: &Array, long: &LongRows) -> Result<Vec<Rotary>> {
        self.distinct.iter().map(|rope| Rotary::new(rope, positions, long)).collect()
    }

    /// The one of these that a layer rotates by.
    pub(in crate::model) fn of_layer<'a>(&self, rotary: &'a [Rotary], layer: usize) -> Option<&'a Rotary> {
        self.of_layers[layer].map(|index| &rotary[index])
    }

    /// A layer's keys `[1, H, T, D]` as they are `positions` earlier.
    pub(in crate::model) fn rerotate(&self, layer: usize, keys: &Array, positions: usize) -> Result<Array> {
        // Without rope, keys are the same at every position.
        let rope = self.of_layers[layer].map(|index| &self.distinct[index]);
        rope.map_or(Ok(keys.clone()), |rope| rope.rotate_by(keys, -(positions as i32)))
    }
}
