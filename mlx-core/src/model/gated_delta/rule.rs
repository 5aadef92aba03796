//! The formula of the gated delta rule. With decay `g`, correction `b`, memory `S` `[Dv, Dk]` and the rows `q`, `k`, `v`:
//! `S = g S; S = S + b (v - S k) k'; y = S q`. A prompt is computed in blocks of rows. The corrections within a block are one triangular
//! system (Yang et al., 2024, arXiv:2406.06484).

use mlx_rs::ops::{
    add, concatenate, exp, expand_dims_axes, matmul, multiply, select, split_equal, subtract, zeros_dtype,
};
use mlx_rs::{Array, Dtype};

use crate::array::slice_axis;
use crate::error::{Error, Result};
use crate::model::segments;

/// The maximum number of rows in a block.
pub(in crate::model) const BLOCK: usize = 64;

/// The size up to which systems are solved row by row; larger ones are solved in halves. It is also the maximum number of rows in a block
/// with separate decays per dimension, where the products of rows have as many numbers for each dimension.
pub(in crate::model) const SMALL: i32 = 16;

/// Consecutive rows of one sequence, or one row of each of several sequences, all of f32. `G` value heads share each of `Hk` key heads.
pub(in crate::model) struct Rows {
    /// `[n, Hk, 1, Dk]`, of length 1 times the scale.
    pub(in crate::model) query: Array,
    /// `[n, Hk, 1, Dk]`, of length 1.
    pub(in crate::model) key: Array,
    /// `[n, Hk, G, Dv]`
    pub(in crate::model) value: Array,
    /// `[n, Hk, G, 1]`, or `[n, Hk, G, Dk]` if each dimension of keys has a separate decay; at most 0.
    pub(in crate::model) log_decay: Array,
    /// `[n, Hk, G]`, from 0 to 1.
    pub(in crate::model) correction: Array,
}

impl Rows {
    /// Returns the output of the rows, `[n, Hk, G, Dv]`, and the states after them, `[S, Hk, G, Dv, Dk]`. `S` is 1 for consecutive rows of
    /// one sequence, or `n` for a row of each of `n` sequences.
    pub(in crate::model) fn scan(&self, memory: Option<&Array>) -> Result<(Array, Array)> {
        let Some(memory) = memory else {
            return Err(Error::Internal("a delta rule layer got no recurrent state".into()));
        };
        if memory.dim(0) == self.key.dim(0) {
            return self.step(memory);
        }
        let (read, memory) = self.blocks(&memory.squeeze_axes(&[0])?)?;
        Ok((read, memory.expand_dims(0)?))
    }

    /// Computes one row of each sequence. Products and sums are separate for each head, so results do not depend on the other rows.
    fn step(&self, memory: &Array) -> Result<(Array, Array)> {
        let [query, key] = [&self.query, &self.key].map(|rows| rows.expand_dims(2));
        let key = key?;
        let memory = multiply(memory, exp(&self.log_decay)?.expand_dims(3)?)?;
        let known = multiply(&memory, &key)?.sum_axis(-1, false)?;
        let change = multiply(subtract(&self.value, known)?, self.correction.expand_dims(3)?)?;
        let memory = add(memory, multiply(change.expand_dims(4)?, key)?)?;
        Ok((multiply(&memory, query?)?.sum_axis(-1, false)?, memory))
    }

    /// Computes several rows in blocks, which start at the first row.
    fn blocks(&self, memory: &Array) -> Result<(Array, Array)> {
        let rows = self.key.dim(0);
        let most = if self.log_decay.dim(3) == 1 { BLOCK } else { SMALL as usize };
        let block = (rows as usize).next_power_of_two().clamp(SMALL as usize, most) as i32;
        let count = (rows + block - 1) / block;
        let blocks = Blocks {
            query: in_blocks(&self.query, count, block)?,
            key: in_blocks(&self.key, count, block)?,
            value: in_blocks(&self.value, count, block)?,
            log_decay: in_blocks(&self.log_decay, count, block)?,
            correction: in_blocks(&expand_dims_axes(&self.correction, &[3])?, count, block)?,
        };
        let (read, memory) = blocks.scan(memory, count, block)?;
        // [Hk, G, blocks * block, Dv] to rows first.
        let read = slice_axis(&read, 2, 0, rows)?.transpose_axes(&[2, 0, 1, 3])?;
        Ok((read, memory))
    }
}

/// Reshapes `[n, Hk, G, D]` to `[Hk, G, count, block, D]`. Rows of zeros, which neither change nor read the memory, fill the last block.
fn in_blocks(rows: &Array, count: i32, block: i32) -> Result<Array> {
    let [length, heads, group, size] = [0, 1, 2, 3].map(|axis| rows.dim(axis));
    let missing = count * block - length;
    let by_head = rows.transpose_axes(&[1, 2, 0, 3])?;
    let whole = if missing == 0 {
        by_head
    } else {
        concatenate(&[by_head, zeros_dtype(&[heads, group, missing, size], rows.dtype())?], 2)?
    };
    Ok(whole.reshape(&[heads, group, count, block, size])?)
}

/// Rows in blocks, `[Hk, 1 or G, count, block, ..]`.
struct Blocks {
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array,
    correction: Array,
}

impl Blocks {
    /// Returns the output of all rows, `[Hk, G, count * block, Dv]`, and the memory after them.
    fn scan(&self, memory: &Array, count: i32, block: i32) -> Result<(Array, Array)> {
        let since_start = self.log_decay.cumsum(3, false, true)?;
        let last = slice_axis(&since_start, 3, block - 1, block)?;
        let (related, seen, to_end) = if self.log_decay.dim(4) == 1 {
            let (related, seen) = self.key_products(&since_start, block)?;
            (related, seen, exp(subtract(&last, &since_start)?)?)
        } else {
            self.related_by_dimension(block)?
        };
        let system = multiply(related, multiply(&self.correction, Array::from_f32(-1.0))?)?;
        let solved = solve(&system, block)?;
        let grown = exp(&since_start)?;
        let values = matmul(&solved, multiply(&self.value, &self.correction)?)?;
        let keys = matmul(&solved, multiply(&self.key, multiply(&self.correction, &grown)?)?)?;
        let query = multiply(&self.query, &grown)?;
        let left = multiply(&self.key, to_end)?;
        let parts = [&values, &keys, &seen, &query, &left.swap_axes(3, 4)?, &exp(last)?.swap_axes(3, 4)?];
        let [values, keys, seen, query, left, whole] = parts.map(|part| split_equal(part, count, 2));
        let (values, keys, seen) = (values?, keys?, seen?);
        let (query, left, whole) = (query?, left?, whole?);
        // [Hk, G, 1, Dk, Dv]
        let mut memory = expand_dims_axes(&memory.swap_axes(2, 3)?, &[2])?;
        let mut read = Vec::with_capacity(values.len());
        for at in 0..values.len() {
            let change = subtract(&values[at], matmul(&keys[at], &memory)?)?;
            read.push(add(matmul(&query[at], &memory)?, matmul(&seen[at], &change)?)?);
            memory = add(multiply(&memory, &whole[at])?, matmul(&left[at], change)?)?;
        }
        let memory = memory.squeeze_axes(&[2])?.swap_axes(2, 3)?.contiguous()?;
        Ok((concatenate(&read, 3)?.squeeze_axes(&[2])?, memory))
    }
}

impl Blocks {
    /// Returns the products of every row's key with the keys of earlier rows, and of its query with the keys up to its own row. Both include
    /// the decay between the rows and are `[Hk, G, count, block, block]`.
    fn key_products(&self, since_start: &Array, block: i32) -> Result<(Array, Array)> {
        let decay = exp(select(
            not_later(block, true),
            subtract(since_start, since_start.swap_axes(3, 4)?)?,
            Array::from_f32(f32::NEG_INFINITY),
        )?)?;
        let key_columns = self.key.swap_axes(3, 4)?;
        let earlier = select(not_later(block, false), &decay, Array::from_f32(0.0))?;
        let related = multiply(matmul(&self.key, &key_columns)?, earlier)?;
        Ok((related, multiply(matmul(&self.query, &key_columns)?, decay)?))
    }

    /// Like [`key_products`](Self::key_products), for separate decays per dimension of keys. Also returns the decay of each row until the end of its
    /// block, `[Hk, G, count, block, Dk]`. The decays are not split into two factors, because one of these would overflow.
    fn related_by_dimension(&self, block: i32) -> Result<(Array, Array, Array)> {
        let kept = segments::segment_decay(&self.log_decay)?;
        let keys = multiply(&kept, expand_dims_axes(&self.key, &[3])?)?;
        let with = |rows: &Array| -> Result<Array> {
            Ok(multiply(&keys, expand_dims_axes(rows, &[4])?)?.sum_axis(-1, false)?)
        };
        let related = select(not_later(block, false), with(&self.key)?, Array::from_f32(0.0))?;
        let to_end = slice_axis(&kept, 3, block - 1, block)?.squeeze_axes(&[3])?;
        Ok((related, with(&self.query)?, to_end))
    }
}

/// Returns a mask `[block, block]`: true if the column is before the row, or equal to it with `own`.
fn not_later(block: i32, own: bool) -> Array {
    let row = |row: i32| (0..block).map(move |column| column < row || own && column == row);
    let mask: Vec<bool> = (0..block).flat_map(row).collect();
    Array::from_slice(&mask, &[block, block])
}

/// Returns the inverse of `1 - system`, where `[.., size, size]` is 0 on and above the diagonal. It uses substitution instead of a product of
/// powers, which become too large for similar keys.
fn solve(system: &Array, size: i32) -> Result<Array> {
    if size <= SMALL {
        return substitute(system, size);
    }
    let half = size / 2;
    let part = |row: i32, column: i32| {
        slice_axis(
            &slice_axis(system, 3, row * half, (row + 1) * half)?,
            4,
            column * half,
            (column + 1) * half,
        )
    };
    // Both halves are solved in one call, as additional blocks.
    let halves = solve(&concatenate(&[part(0, 0)?, part(1, 1)?], 2)?, half)?;
    let halves = split_equal(halves, 2, 2)?;
    let below = matmul(matmul(&halves[1], part(1, 0)?)?, &halves[0])?;
    let nothing = zeros_dtype(below.shape(), Dtype::Float32)?;
    let upper = concatenate(&[&halves[0], &nothing], 4)?;
    Ok(concatenate(&[upper, concatenate(&[&below, &halves[1]], 4)?], 3)?)
}

/// Solves a small system column by column: once a row is final, its contribution is added to later rows.
fn substitute(system: &Array, size: i32) -> Result<Array> {
    let identity: Vec<f32> =
        (0..size * size).map(|place| if place / size == place % size { 1.0 } else { 0.0 }).collect();
    let mut solved = Array::from_slice(&identity, &[size, size]);
    for row in 0..size - 1 {
        let column = slice_axis(system, 4, row, row + 1)?;
        let axis = solved.ndim() - 2;
        let done = slice_axis(&solved, axis, row, row + 1)?;
        solved = add(&solved, multiply(column, done)?)?;
    }
    Ok(solved)
}
