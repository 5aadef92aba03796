//! The ropes of a model's layers.

use mlx_rs::Array;

use super::config::RopeConfig;
use super::constants::Rope;
use super::rotary::{LongRows, Rotary};
use crate::backend::Backend;
use crate::error::Result;

/// The dimensions below which a rope is narrow; see [`Backend::fused_narrow_rope`].
const NARROW: i32 = 32;

/// The ropes of all layers, without duplicates.
pub(in crate::model) struct Ropes {
    distinct: Vec<Rope>,
    /// The index of each layer's rope, if it has one.
    of_layers: Vec<Option<usize>>,
}

impl Ropes {
    /// Creates the ropes of these layers. The backend determines if each is one operation.
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

    /// Returns the rotation of a pass's rows by each rope. Positions are `[T]`, or `[3, T]`.
    pub(in crate::model) fn rotary(&self, positions: &Array, long: &LongRows) -> Result<Vec<Rotary>> {
        self.distinct.iter().map(|rope| Rotary::new(rope, positions, long)).collect()
    }

    /// Returns the rotation of a layer, from the result of [`rotary`](Self::rotary).
    pub(in crate::model) fn of_layer<'a>(&self, rotary: &'a [Rotary], layer: usize) -> Option<&'a Rotary> {
        self.of_layers[layer].map(|index| &rotary[index])
    }

    /// Rotates a layer's keys `[1, H, T, D]` to positions that are `positions` earlier.
    pub(in crate::model) fn rerotate(&self, layer: usize, keys: &Array, positions: usize) -> Result<Array> {
        // Without rope, keys do not depend on the position.
        let rope = self.of_layers[layer].map(|index| &self.distinct[index]);
        rope.map_or(Ok(keys.clone()), |rope| rope.rotate_by(keys, -(positions as i32)))
    }
}
