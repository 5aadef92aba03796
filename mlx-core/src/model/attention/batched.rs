//! Attention of the rows of a decode step at once, over buffers side by side. It gives what span by span gives but for rounding.

use mlx_rs::Array;
use mlx_rs::fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention};
use mlx_rs::ops::{arange, concatenate, lt, matmul};

use super::Core;
use super::core::Fused;
use crate::cache::{Bucket, LayerState, append_rows};
use crate::error::Result;
use crate::model::batch::Batch;

impl Core {
    /// See [`Core::attend`]; `None`, with nothing appended, if the pass is no decode step of several sequences, or layers have windows or
    /// are quantized.
    pub(super) fn batched(
        &self,
        query: &Array,
        added: &Array,
        batch: &Batch,
        states: &mut [&mut LayerState],
    ) -> Result<Option<Array>> {
        let of_rows: Vec<usize> = batch.spans().iter().map(|span| span.state).collect();
        let distinct = of_rows.windows(2).all(|pair| pair[0] < pair[1]);
        let is_step = batch.is_decode() && distinct && of_rows.len() > 1 && of_rows.len() == batch.width();
        if !is_step || self.sliding_window.is_some() {
            return Ok(None);
        }
        let Some(buckets) = append_rows(states, &of_rows, added)? else { return Ok(None) };
        let query = if self.fused == Fused::All { query } else { &self.scaled(query)? };
        if let [only] = buckets.as_slice() {
            return self.attend_bucket(query, only).map(Some);
        }
        let mut mixed = Vec::with_capacity(buckets.len());
        for bucket in &buckets {
            mixed.push(self.attend_bucket(&query.take_axis(indices(&bucket.rows), 0)?, bucket)?);
        }
        // Back to the order of the rows.
        let rows: Vec<usize> = buckets.into_iter().flat_map(|bucket| bucket.rows).collect();
        let mut places: Vec<usize> = (0..rows.len()).collect();
        places.sort_unstable_by_key(|&place| rows[place]);
        Ok(Some(concatenate(&mixed, 0)?.take_axis(indices(&places), 0)?))
    }

    /// `[rows, Hq, 1, D]`, the queries of a bucket's rows, over its keys and values.
    fn attend_bucket(&self, query: &Array, bucket: &Bucket) -> Result<Array> {
        let Bucket { lengths, keys, values, .. } = bucket;
        let seen = keys.dim(2);
        let uneven = lengths.iter().any(|&length| length as i32 != seen);
        let lengths: Vec<i32> = lengths.iter().map(|&length| length as i32).collect();
        let lengths = Array::from_slice(&lengths, &[lengths.len() as i32, 1, 1, 1]);
        let mask = uneven.then(|| arange::<_, i32>(0, seen, 1).and_then(|places| lt(places, lengths)));
        let mask = mask.transpose()?;
        if self.fused == Fused::All {
            let (mask, sinks) = (mask.as_ref().map(Mask::Array), self.weights.sinks());
            return Ok(scaled_dot_product_attention(query, keys, values, self.scale, mask, sinks)?);
        }
        let scores = matmul(self.grouped(query)?, keys.swap_axes(2, 3)?)?;
        let mixed = matmul(self.weights.of_bucket(&scores, mask.as_ref())?, values)?;
        Ok(mixed.reshape(&[query.dim(0), query.dim(1), 1, values.dim(3)])?)
    }
}

fn indices(places: &[usize]) -> Array {
    let places: Vec<i32> = places.iter().map(|&place| place as i32).collect();
    Array::from_slice(&places, &[places.len() as i32])
}
