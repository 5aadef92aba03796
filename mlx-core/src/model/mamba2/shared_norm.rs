//! The norm of a group whose heads are on several machines.

use mlx_rs::Array;
use mlx_rs::ops::{add, concatenate, multiply, rsqrt, square, zeros_dtype};

use super::config::{GatedNorm, Mamba2Config};
use crate::array::slice_axis;
use crate::error::Result;
use crate::weights::{Shard, Weights};

/// A root mean square norm over the heads of several machines, which all have equally many.
pub(super) struct SharedNorm {
    shard: Shard,
    /// The number of machines per group.
    group_ranks: usize,
}

impl SharedNorm {
    /// Returns the norm, if several machines share a group that has one.
    pub(super) fn of(weights: &Weights, config: &Mamba2Config) -> Option<Self> {
        let group_ranks = config.group_ranks;
        let shard = weights.shard().filter(|_| group_ranks > 1 && config.norm != GatedNorm::None);
        shard.cloned().map(|shard| Self { shard, group_ranks })
    }

    /// Normalizes `[T, H P]` of f32, of one group. The machines of all groups add up their mean squares, each in the column of its group.
    pub(super) fn forward(&self, mixed: &Array, eps: f32) -> Result<Array> {
        let (rows, groups) = (mixed.dim(0), self.shard.ranks / self.group_ranks);
        let own = (self.shard.rank / self.group_ranks) as i32;
        let nothing = |columns: i32| zeros_dtype(&[rows, columns], mixed.dtype());
        let mean = square(mixed)?.mean_axis(-1, true)?;
        let column = concatenate(&[nothing(own)?, mean, nothing(groups as i32 - own - 1)?], 1)?;
        let sum = slice_axis(&self.shard.sum(&column)?, 1, own, own + 1)?;
        let mean = multiply(sum, Array::from_f32((self.group_ranks as f32).recip()))?;
        Ok(multiply(mixed, rsqrt(add(mean, Array::from_f32(eps))?)?)?)
    }
}
