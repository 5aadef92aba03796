//! Attention of each span over its own state. The result of a row does not depend on other spans or on their number.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention};
use mlx_rs::ops::{concatenate, matmul, multiply, split_equal};

use super::Core;
use super::core::Fused;
use super::masks::Masks;
use super::packed;
use crate::array::{scalar_like, slice_axis};
use crate::cache::{LayerState, PackedRows, Seen};
use crate::error::Result;
use crate::model::batch::{Batch, Span};

/// The queries of a span.
#[derive(Clone, Copy)]
struct Queries<'a> {
    /// `[n, Hq, 1, D]`
    rows: &'a Array,
    /// True if the queries are already multiplied by the scale of scores.
    scaled: bool,
}

impl Core {
    /// See [`Core::attend`].
    pub(super) fn per_span(
        &self,
        query: &Array,
        added: Option<&[Array]>,
        batch: &Batch,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        let spans = batch.spans();
        let of_state = || spans.chunk_by(|one, next| one.state == next.state);
        let lengths = |spans: &[Span]| spans.iter().map(|span| span.len).sum::<usize>();
        let padding = batch.width() - lengths(spans);
        // MLX's operation scales queries. If only some spans use it, all queries are scaled before, which gives equal products.
        let scaled = match self.fused {
            Fused::None => true,
            Fused::SingleRows => spans.iter().any(|span| span.len > 1),
            Fused::All => false,
        };
        let query = if scaled { &self.scaled(query)? } else { query };
        let queries = split_rows(query, spans.iter().map(|span| span.len), padding)?;
        // Keys precede values.
        let added = match added {
            Some([whole]) => Some(whole.clone()),
            Some(parts) => Some(concatenate(parts, 1)?),
            None => None,
        };
        let added = added.map(|added| split_rows(&added, of_state().map(lengths), padding)).transpose()?;
        let (mut mixed, mut row) = (Vec::with_capacity(queries.len()), 0);
        for (index, spans) in of_state().enumerate() {
            let state = &mut *states[spans[0].state];
            let seen = match added.as_ref().map(|added| &added[index]) {
                // One call for all rows of a state, so that a rollback can return to the start of the pass.
                Some(added) if added.dim(0) == 1 => state.append(added)?,
                Some(added) => state.append(&added.swap_axes(0, 2)?)?,
                None => state.seen(lengths(spans))?,
            };
            for span in spans {
                let seen = self.seen_by(*span, lengths(spans) + spans[0].start, &seen)?;
                let rows = row..row + span.len;
                row = rows.end;
                let pictures = if self.two_way_pictures { batch.pictures_in(&rows) } else { Vec::new() };
                let query = Queries { rows: &queries[mixed.len()], scaled };
                mixed.push(self.attend_span(query, &seen, &pictures, batch.masks())?);
            }
        }
        // The values of padding are arbitrary.
        let width = mixed.first().map_or(0, |rows: &Array| rows.dim(3));
        for padding in queries.iter().skip(spans.len()) {
            mixed.push(if padding.dim(3) == width {
                padding.clone()
            } else {
                slice_axis(padding, 3, 0, width)?
            });
        }
        match mixed.as_slice() {
            [only] => Ok(only.clone()),
            all => Ok(concatenate(all, 0)?),
        }
    }

    /// Returns queries times the scale of scores.
    pub(super) fn scaled(&self, query: &Array) -> Result<Array> {
        Ok(multiply(query, scalar_like(self.scale, query)?)?)
    }

    /// Groups queries `[T, Hq, 1, D]` by key head, `[T, Hk, group, D]`.
    pub(super) fn grouped(&self, query: &Array) -> Result<Array> {
        let (queries, keys) = (self.heads.query as i32, self.heads.key as i32);
        Ok(query.reshape(&[query.dim(0), keys, queries / keys, query.dim(3)])?)
    }

    /// Returns the positions that a span attends to, from the window of its first row to its last row. `seen` ends at position `end`.
    fn seen_by(&self, span: Span, end: usize, seen: &Seen) -> Result<Seen> {
        let last = seen.len() - (end - span.start - span.len) as i32;
        let first = self.sliding_window.map_or(0, |window| (last - span.len as i32 + 1 - window).max(0));
        seen.within(first, last)
    }

    /// Attends from the queries of a span, `[n, Hq, 1, D]`, to keys and values, `[1, Hk, seen, D]`. The span's rows are the last of these
    /// positions. The rows of each picture attend to each other.
    fn attend_span(
        &self,
        queries: Queries,
        seen: &Seen,
        pictures: &[Range<i32>],
        masks: &Masks,
    ) -> Result<Array> {
        let query = queries.rows;
        let rows = query.dim(0);
        let (keys, values) = match seen {
            Seen::Plain { keys, values } => (keys, values),
            Seen::Packed { keys, values } if rows == 1 && self.fused == Fused::All => {
                return self.over_packed(queries, keys, values);
            }
            // Many rows share one dequantization.
            Seen::Packed { keys, values } => (&packed::unpacked(keys)?, &packed::unpacked(values)?),
        };
        if self.fused == Fused::All || (rows == 1 && self.fused == Fused::SingleRows) {
            let scale = if queries.scaled { 1.0 } else { self.scale };
            let band = masks.band(rows, seen.len(), self.sliding_window, pictures)?;
            let query = if rows == 1 { query } else { &query.swap_axes(0, 2)? };
            let mixed = self.fused(query, scale, (keys, values), band.as_ref())?;
            return if rows == 1 { Ok(mixed) } else { Ok(mixed.swap_axes(0, 2)?) };
        }
        let grouped = self.grouped(query)?;
        let [num_kv_heads, group, size] = [1, 2, 3].map(|axis| grouped.dim(axis));
        // Values may be narrower than keys.
        let width = values.dim(3);
        if rows == 1 {
            let scores = matmul(grouped, keys.swap_axes(2, 3)?)?;
            let mixed = matmul(self.weights.of_row(&scores)?, values)?;
            return Ok(mixed.reshape(&[1, num_kv_heads * group, 1, width])?);
        }
        // The query heads of a key head become rows of one product.
        let by_head =
            grouped.transpose_axes(&[1, 2, 0, 3])?.reshape(&[1, num_kv_heads, group * rows, size])?;
        let scores = matmul(by_head, keys.swap_axes(2, 3)?)?;
        let scores = scores.reshape(&[1, num_kv_heads, group, rows, -1])?;
        let weights = self.weights.of_rows(&scores, self.sliding_window, pictures, masks)?;
        let mixed = matmul(weights.reshape(&[1, num_kv_heads, group * rows, -1])?, values)?;
        Ok(mixed.reshape(&[num_kv_heads * group, rows, 1, width])?.swap_axes(0, 1)?)
    }

    /// Attends from the query of one row to keys and values without dequantizing them.
    fn over_packed(&self, queries: Queries, keys: &PackedRows, values: &PackedRows) -> Result<Array> {
        let query = if queries.scaled { queries.rows.clone() } else { self.scaled(queries.rows)? };
        let scores = packed::scores(&self.grouped(&query)?, keys)?;
        let mixed = packed::mixed(&self.weights.of_row(&scores)?, values)?;
        Ok(mixed.reshape(&[1, self.heads.query as i32, 1, -1])?)
    }

    /// Attends from `[1, Hq, n, D]` with MLX's operation. Without a band, the mask is causal.
    fn fused(
        &self,
        query: &Array,
        scale: f32,
        (keys, values): (&Array, &Array),
        band: Option<&Array>,
    ) -> Result<Array> {
        let causal = || (query.dim(2) > 1).then_some(Mask::Causal);
        let mask = band.map(Mask::Array).or_else(causal);
        Ok(scaled_dot_product_attention(query, keys, values, scale, mask, self.weights.sinks())?)
    }
}

/// Splits the rows of `array` into parts of these lengths and the `left` rows after them.
fn split_rows(array: &Array, lengths: impl Iterator<Item = usize>, left: usize) -> Result<Vec<Array>> {
    let lengths: Vec<usize> = lengths.chain((left > 0).then_some(left)).collect();
    if lengths.len() == 1 {
        return Ok(vec![array.clone()]);
    }
    // One operation returns all parts.
    if lengths.iter().all(|&length| length == lengths[0]) {
        return Ok(split_equal(array, lengths.len() as i32, 0)?);
    }
    let mut end = 0;
    let ends = lengths[..lengths.len() - 1].iter().map(|&length| {
        end += length as i32;
        end
    });
    Ok(array.split_at_indices(&ends.collect::<Vec<_>>(), 0)?)
}
