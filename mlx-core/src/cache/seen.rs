//! The keys and values that rows of a pass attend to.

use mlx_rs::Array;

use crate::array::slice_axis;
use crate::error::{Error, Result};

/// Keys and values of one sequence or of several.
#[derive(Clone)]
pub(crate) enum Seen {
    /// `[S, H, positions, D]` each.
    Plain {
        /// Keys.
        keys: Array,
        /// Values.
        values: Array,
    },
    /// Quantized, `[S, H, positions, ..]` each.
    Packed {
        /// Keys.
        keys: PackedRows,
        /// Values.
        values: PackedRows,
    },
}

/// Rows quantized along their last axis.
#[derive(Clone)]
pub(crate) struct PackedRows {
    /// Packed numbers, scales and biases, `[S, H, positions, ..]` each.
    pub(crate) arrays: [Array; 3],
    pub(crate) bits: i32,
}

impl PackedRows {
    fn sliced(&self, axis: usize, start: i32, end: i32) -> Result<Self> {
        let [weight, scales, biases] =
            self.arrays.each_ref().map(|array| slice_axis(array, axis, start, end));
        Ok(Self { arrays: [weight?, scales?, biases?], bits: self.bits })
    }

    /// Splits after the first `count` heads.
    pub(super) fn split_heads(&self, count: i32) -> Result<(Self, Self)> {
        Ok((self.sliced(1, 0, count)?, self.sliced(1, count, self.arrays[0].dim(1))?))
    }
}

impl Seen {
    /// Converts the arrays of a pool; fails if the pool has a different number of arrays.
    pub(super) fn parts<const N: usize>(parts: Vec<Array>) -> Result<[Array; N]> {
        parts.try_into().map_err(|_| Error::Internal("a pool has arrays of another kind of layer".into()))
    }

    /// Converts the arrays of a pool to keys and values.
    pub(super) fn pair(parts: Vec<Array>) -> Result<Self> {
        let [keys, values] = Self::parts(parts)?;
        Ok(Self::Plain { keys, values })
    }

    /// The number of positions.
    pub(crate) fn len(&self) -> i32 {
        match self {
            Self::Plain { keys, .. } => keys.dim(2),
            Self::Packed { keys, .. } => keys.arrays[0].dim(2),
        }
    }

    /// Returns the positions from `first` up to `last`.
    pub(crate) fn within(&self, first: i32, last: i32) -> Result<Self> {
        if (first, last) == (0, self.len()) {
            return Ok(self.clone());
        }
        Ok(match self {
            Self::Plain { keys, values } => Self::Plain {
                keys: slice_axis(keys, 2, first, last)?,
                values: slice_axis(values, 2, first, last)?,
            },
            Self::Packed { keys, values } => {
                Self::Packed { keys: keys.sliced(2, first, last)?, values: values.sliced(2, first, last)? }
            }
        })
    }
}
