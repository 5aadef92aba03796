//! Attention of all rows of a decode step, with one call per pool. The result equals that of `per_span.rs`, except for rounding.

use mlx_rs::Array;
use mlx_rs::fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention};
use mlx_rs::ops::{concatenate, matmul};

use super::Core;
use super::core::Fused;
use super::packed;
use crate::array::take_rows;
use crate::cache::{Bucket, LayerState, Seen, StepRows, append_rows, seen_rows};
use crate::error::Result;
use crate::model::batch::Batch;

impl Core {
    /// Implements [`Core::attend`]. Returns `None`, and appends nothing, if the pass is not a decode step of several sequences, or if pools
    /// cannot hold their states.
    pub(super) fn batched(
        &self,
        query: &Array,
        added: Option<&[Array]>,
        batch: &Batch,
        states: &mut [&mut LayerState],
    ) -> Result<Option<Array>> {
        let Some(of_rows) = batch.states_of_step() else { return Ok(None) };
        let rows = StepRows { states: &of_rows, promised: batch.promised(), columns: batch.columns() };
        let buckets = match added {
            Some(added) => append_rows(states, &rows, added)?,
            None => seen_rows(states, &rows)?,
        };
        let Some(buckets) = buckets else { return Ok(None) };
        let query = if self.fused == Fused::All { query } else { &self.scaled(query)? };
        let mixed: Vec<Array> =
            buckets.iter().map(|bucket| self.attend_bucket(query, bucket, batch)).collect::<Result<_>>()?;
        // Restores the order of the rows.
        let (mut places, mut before) = (vec![0; of_rows.len()], 0);
        for bucket in &buckets {
            for &(row, place) in &bucket.row_positions {
                places[row] = before + place;
            }
            before += bucket.row_of_place.len();
        }
        let mixed = if let [only] = mixed.as_slice() { only.clone() } else { concatenate(&mixed, 0)? };
        take_rows(&mixed, &places).map(Some)
    }

    /// Attends from the queries of all rows, `[T, Hq, 1, D]`, to one bucket; returns `[places, Hq, 1, width of values]`.
    fn attend_bucket(&self, query: &Array, bucket: &Bucket, batch: &Batch) -> Result<Array> {
        let query = take_rows(query, &bucket.row_of_place)?;
        let [places, heads, size] = [0, 1, 3].map(|axis| query.dim(axis));
        let most = bucket.rows_per_slot as i32;
        let query = match most {
            1 => query,
            _ => query.reshape(&[places / most, most, heads, size])?.swap_axes(1, 2)?,
        };
        let mixed = match &bucket.seen {
            Seen::Plain { keys, values } if self.fused == Fused::All => {
                let mask = batch.masks().of(bucket, self.sliding_window, heads)?;
                let (mask, sinks) = (mask.as_ref().map(Mask::Array), self.weights.sinks());
                scaled_dot_product_attention(query, keys, values, self.scale, mask, sinks)?
            }
            seen => {
                let query = if self.fused == Fused::All { self.scaled(&query)? } else { query };
                self.written_out(&query, seen, bucket, batch)?
            }
        };
        match most {
            1 => Ok(mixed),
            _ => Ok(mixed.swap_axes(1, 2)?.reshape(&[places, heads, 1, mixed.dim(3)])?),
        }
    }

    /// Attends from scaled queries, `[slots, Hq, most, D]`, with products and a softmax.
    fn written_out(&self, query: &Array, seen: &Seen, bucket: &Bucket, batch: &Batch) -> Result<Array> {
        let (slots, most) = (query.dim(0), query.dim(2));
        let (queries, keys) = (self.heads.query as i32, self.heads.key as i32);
        let group = queries / keys;
        let mask = batch.masks().of(bucket, self.sliding_window, 1)?;
        let by_head = query.reshape(&[slots, keys, group * most, query.dim(3)])?;
        let scores = match seen {
            Seen::Plain { keys, .. } => matmul(by_head, keys.swap_axes(2, 3)?)?,
            Seen::Packed { keys, .. } => packed::scores(&by_head, keys)?,
        };
        let scores = scores.reshape(&[slots, keys, group, most, -1])?;
        let mask = mask.map(|mask| mask.expand_dims(1)).transpose()?;
        let weights =
            self.weights.of_bucket(&scores, mask.as_ref())?.reshape(&[slots, keys, group * most, -1])?;
        let mixed = match seen {
            Seen::Plain { values, .. } => matmul(weights, values)?,
            Seen::Packed { values, .. } => packed::mixed(&weights, values)?,
        };
        Ok(mixed.reshape(&[slots, queries, most, -1])?)
    }
}
