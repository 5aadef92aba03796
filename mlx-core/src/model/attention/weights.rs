//! From the scores of queries and keys to the weights of values: caps, masks, sinks, softmax.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::{broadcast_to, concatenate, select, softmax_axis};

use super::config::AttentionConfig;
use super::masks::Masks;
use crate::array::{scalar_like, slice_axis};
use crate::error::Result;
use crate::mlx_sys::slice_update_add;
use crate::model::softcap::softcap;
use crate::weights::Weights;

/// The steps from scores to weights: soft cap, mask, sinks, softmax.
pub(super) struct AttentionWeights {
    cap: Option<f32>,
    /// `[Hq]`: a score per query head that enters the softmax without a value.
    sinks: Option<Array>,
    /// The sinks as `[1, Hk, group, 1]`.
    sinks_by_group: Option<Array>,
}

impl AttentionWeights {
    /// Takes `{name}.sinks` if there are sinks.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &AttentionConfig) -> Result<Self> {
        let name = format!("{name}.sinks");
        let sinks = config.sinks.then(|| weights.take(&name, &[config.num_heads])).transpose()?;
        let groups = [1, config.num_kv_heads as i32, (config.num_heads / config.num_kv_heads) as i32, 1];
        let sinks_by_group = sinks.as_ref().map(|sinks| sinks.reshape(&groups)).transpose()?;
        Ok(Self { cap: config.softcap, sinks, sinks_by_group })
    }

    /// Returns the sinks, `[Hq]`, for an operation that applies them.
    pub(super) fn sinks(&self) -> Option<&Array> {
        self.sinks.as_ref()
    }

    /// Returns the weights of one row's scores, `[1, Hk, group, seen]`.
    pub(super) fn of_row(&self, scores: &Array) -> Result<Array> {
        let scores = self.capped(scores)?;
        let Some(sinks) = &self.sinks_by_group else { return Ok(softmax_axis(scores, -1, true)?) };
        let seen = scores.dim(-1);
        let weights = softmax_axis(concatenate(&[&scores, sinks], -1)?, -1, true)?;
        slice_axis(&weights, 3, 0, seen)
    }

    /// Returns the weights of the scores of several sequences, `[slots, Hk, group, n, seen]`, under a mask, `[slots, 1, 1, n, seen]`.
    pub(super) fn of_bucket(&self, scores: &Array, mask: Option<&Array>) -> Result<Array> {
        let mut scores = self.capped(scores)?;
        if let Some(mask) = mask {
            scores = select(mask, &scores, scalar_like(f32::NEG_INFINITY, &scores)?)?;
        }
        let Some(sinks) = &self.sinks_by_group else { return Ok(softmax_axis(scores, -1, true)?) };
        let seen = scores.dim(-1);
        let shape = [scores.dim(0), scores.dim(1), scores.dim(2), scores.dim(3), 1];
        let sinks = broadcast_to(sinks.expand_dims(4)?, &shape)?;
        let weights = softmax_axis(concatenate(&[&scores, &sinks], -1)?, -1, true)?;
        slice_axis(&weights, 4, 0, seen)
    }

    /// Returns the weights of the scores of the last `n` positions, `[1, Hk, group, n, seen]`. A row attends to itself and earlier positions, at
    /// most `window` in total. With a window, the rows of each of these pictures attend to each other.
    pub(super) fn of_rows(
        &self,
        scores: &Array,
        window: Option<i32>,
        pictures: &[Range<i32>],
        masks: &Masks,
    ) -> Result<Array> {
        let (rows, seen) = (scores.dim(3), scores.dim(4));
        let mut scores = self.capped(scores)?;
        match masks.band(rows, seen, window, pictures)? {
            _ if rows == 1 => {}
            Some(band) => scores = select(band, &scores, scalar_like(f32::NEG_INFINITY, &scores)?)?,
            None => {
                // All rows attend to all positions before the first row. Masking these would cost more than the products.
                let (start, stop) =
                    ([0, 0, 0, 0, seen - rows], [1, scores.dim(1), scores.dim(2), rows, seen]);
                scores = slice_update_add(&scores, &masks.later(rows)?, start, stop)?;
            }
        }
        let Some(sinks) = &self.sinks_by_group else { return Ok(softmax_axis(scores, -1, true)?) };
        let shape = [1, scores.dim(1), scores.dim(2), rows, 1];
        let sinks = broadcast_to(sinks.expand_dims(4)?, &shape)?;
        let weights = softmax_axis(concatenate(&[&scores, &sinks], -1)?, -1, true)?;
        slice_axis(&weights, 4, 0, seen)
    }

    fn capped(&self, scores: &Array) -> Result<Array> {
        match self.cap {
            Some(cap) => softcap(scores, cap),
            None => Ok(scores.clone()),
        }
    }
}
