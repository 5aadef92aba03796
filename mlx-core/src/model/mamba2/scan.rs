//! The recurrence of Mamba-2. With decay `g`, time step `d`, memory `S` `[P, N]` and the rows `x`, `B`, `C`:
//! `S = g S + d x B'; y = S C`. A prompt is computed in blocks of rows (Dao and Gu, 2024, arXiv:2405.21060).

use mlx_rs::Array;
use mlx_rs::ops::{add, concatenate, exp, expand_dims_axes, matmul, multiply, split_equal, zeros_dtype};

use crate::array::slice_axis;
use crate::error::{Error, Result};
use crate::model::segments;

/// The maximum number of rows in a block.
pub(super) const BLOCK: usize = 64;

/// The minimum block size. Fewer rows are padded to it.
const SMALL: usize = 16;

/// Consecutive rows of one sequence, or one row of each of several sequences, all of f32. `R` heads share each of `G` groups.
pub(super) struct Rows {
    /// `d x`, `[n, G, R, P]`.
    pub(super) input: Array,
    /// `B`, `[n, G, 1, N]`.
    pub(super) write: Array,
    /// `C`, `[n, G, 1, N]`.
    pub(super) read: Array,
    /// `log g`, `[n, G, R, 1]`, at most 0.
    pub(super) log_decay: Array,
}

impl Rows {
    /// Returns the output of the rows, `[n, G, R, P]`, and the states after them, `[S, G, R, P, N]`. `S` is 1 for consecutive rows of one
    /// sequence, or `n` for a row of each of `n` sequences.
    pub(super) fn scan(&self, memory: Option<&Array>) -> Result<(Array, Array)> {
        let Some(memory) = memory else {
            return Err(Error::Internal("a Mamba-2 layer got no recurrent state".into()));
        };
        if memory.dim(0) == self.input.dim(0) {
            return self.step(memory);
        }
        let (output, memory) = self.blocks(&memory.squeeze_axes(&[0])?)?;
        Ok((output, memory.expand_dims(0)?))
    }

    /// Computes one row of each sequence. Products and sums are separate for each head, so results do not depend on the other rows.
    fn step(&self, memory: &Array) -> Result<(Array, Array)> {
        let decay = exp(&self.log_decay)?.expand_dims(4)?;
        let [write, read] = [&self.write, &self.read].map(|rows| rows.expand_dims(2));
        let memory = add(multiply(memory, decay)?, multiply(self.input.expand_dims(4)?, write?)?)?;
        Ok((multiply(&memory, read?)?.sum_axis(-1, false)?, memory))
    }

    /// Computes several rows in blocks, which start at the first row.
    fn blocks(&self, memory: &Array) -> Result<(Array, Array)> {
        let rows = self.input.dim(0);
        let block = (rows as usize).next_power_of_two().clamp(SMALL, BLOCK) as i32;
        let count = (rows + block - 1) / block;
        let [input, write, read, log_decay] =
            [&self.input, &self.write, &self.read, &self.log_decay].map(|rows| in_blocks(rows, count, block));
        let (input, write, read, log_decay) = (input?, write?, read?, log_decay?);
        let kept = segments::segment_decay(&log_decay)?.squeeze_axes(&[-1])?;
        let related = multiply(matmul(&read, write.swap_axes(3, 4)?)?, &kept)?;
        let within = matmul(related, &input)?;
        // The decay of each row until the end of its block: the last row of `kept` as a column.
        let left = slice_axis(&kept, 3, block - 1, block)?.swap_axes(3, 4)?;
        let added = matmul(multiply(&input, left)?.swap_axes(3, 4)?, &write)?;
        let since_start = log_decay.cumsum(3, false, true)?;
        let whole = exp(slice_axis(&since_start, 3, block - 1, block)?)?;
        let (starts, memory) = through_blocks(memory, &added, &whole, count)?;
        let before = matmul(multiply(&read, exp(&since_start)?)?, starts.swap_axes(3, 4)?)?;
        let [groups, heads, size] = [1, 2, 3].map(|axis| self.input.dim(axis));
        let output = add(within, before)?.reshape(&[groups, heads, count * block, size])?;
        Ok((slice_axis(&output, 2, 0, rows)?.transpose_axes(&[2, 0, 1, 3])?, memory))
    }
}

/// Returns the memory at the start of each block, `[G, R, count, P, N]`, and after the last one, `[G, R, P, N]`. `added`, of the former
/// shape, has the contribution of each block. `whole`, `[G, R, count, 1, 1]`, has the decay of the memory over each block.
fn through_blocks(memory: &Array, added: &Array, whole: &Array, count: i32) -> Result<(Array, Array)> {
    let (added, whole) = (split_equal(added, count, 2)?, split_equal(whole, count, 2)?);
    let mut memory = expand_dims_axes(memory, &[2])?;
    let mut starts = Vec::with_capacity(added.len());
    for (added, whole) in added.iter().zip(&whole) {
        let next = add(multiply(&memory, whole)?, added)?;
        starts.push(std::mem::replace(&mut memory, next));
    }
    Ok((concatenate(&starts, 2)?, memory.squeeze_axes(&[2])?))
}

/// Reshapes `[n, G, R, D]` to `[G, R, count, block, D]`. Rows of zeros, which neither decay nor add anything, fill the last block.
fn in_blocks(rows: &Array, count: i32, block: i32) -> Result<Array> {
    let [length, groups, heads, size] = [0, 1, 2, 3].map(|axis| rows.dim(axis));
    let missing = count * block - length;
    let by_head = rows.transpose_axes(&[1, 2, 0, 3])?;
    let whole = if missing == 0 {
        by_head
    } else {
        concatenate(&[by_head, zeros_dtype(&[groups, heads, missing, size], rows.dtype())?], 2)?
    };
    Ok(whole.reshape(&[groups, heads, count, block, size])?)
}
