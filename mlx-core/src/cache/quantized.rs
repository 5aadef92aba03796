//! A layer state that keeps every position quantized: a scale and a bias for each group of 64 numbers, as in MLX's quantized
//! weights. What is read differs from what was written.

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexMutOp;
use mlx_rs::ops::{concatenate, dequantize, quantize, zeros_dtype};

use super::capacity::capacity;
use super::measure::measure;
use crate::array::slice_axis;
use crate::error::Result;

/// Numbers that share a scale and a bias.
pub(crate) const GROUP: usize = 64;

/// Packed numbers, scales and biases, `[1, capacity, …]` each, of which the first `length` positions count.
pub struct QuantizedCache {
    bits: i32,
    buffers: Option<[Array; 3]>,
    bytes: usize,
    length: usize,
    /// `[2 H, D]` of what was added.
    shape: [i32; 2],
}

impl QuantizedCache {
    pub(super) fn new(bits: u8) -> Self {
        Self { bits: i32::from(bits), buffers: None, bytes: 0, length: 0, shape: [0; 2] }
    }

    /// Appends `[1, 2 H, T, D]`, keys before values, and gives all keys and all values, `[1, H, length, D]` each.
    pub(super) fn append(&mut self, added: &Array) -> Result<(Array, Array)> {
        let (start, end) = (self.length, self.length + added.dim(2) as usize);
        self.shape = [added.dim(1), added.dim(3)];
        let parts = self.packed(added)?;
        let old = self.buffers.take();
        let mut buffers = match old {
            Some(old) if end <= old[0].dim(1) as usize => old,
            old => {
                let buffers = with_capacity(old.as_ref(), &parts, start, end)?;
                self.bytes = measure(&buffers);
                buffers
            }
        };
        for (buffer, part) in buffers.iter_mut().zip(&parts) {
            buffer.try_index_mut((.., start as i32..end as i32), part)?;
        }
        (self.buffers, self.length) = (Some(buffers), end);
        self.view(&parts[1])
    }

    /// All keys and all values, `[1, H, length, D]` each; `None` before the first.
    pub(super) fn seen(&self) -> Result<Option<(Array, Array)>> {
        self.buffers.as_ref().map(|buffers| self.view(&buffers[1])).transpose()
    }

    /// The same, in the type of `like`.
    fn view(&self, like: &Array) -> Result<(Array, Array)> {
        let all = self.unpacked(like)?;
        let heads = self.shape[0] / 2;
        Ok((slice_axis(&all, 1, 0, heads)?, slice_axis(&all, 1, heads, 2 * heads)?))
    }

    /// `[1, 2 H, T, D]` as packed numbers, scales and biases of `[1, T, 2 H D]`.
    fn packed(&self, plain: &Array) -> Result<[Array; 3]> {
        let width = self.shape[0] * self.shape[1];
        let flat = plain.swap_axes(1, 2)?.reshape(&[1, plain.dim(2), width])?;
        Ok(quantize(flat, GROUP as i32, self.bits)?.into())
    }

    /// All positions, `[1, 2 H, length, D]`, in the type of `like`.
    fn unpacked(&self, like: &Array) -> Result<Array> {
        let [heads, size] = self.shape;
        let Some(buffers) = &self.buffers else {
            return Ok(zeros_dtype(&[1, heads, 0, size], like.dtype())?);
        };
        let length = self.length as i32;
        let [packed, scales, biases] = buffers.each_ref().map(|buffer| slice_axis(buffer, 1, 0, length));
        let flat = dequantize(packed?, scales?, &biases?, GROUP as i32, self.bits)?;
        Ok(flat.reshape(&[1, length, heads, size])?.swap_axes(1, 2)?)
    }

    /// The first `length` positions in buffers of their own.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        let length = length.min(self.length);
        let buffers = match &self.buffers {
            Some(buffers) if length > 0 => Some(with_capacity(Some(buffers), buffers, length, length)?),
            _ => None,
        };
        let bytes = measure(buffers.iter().flatten());
        Ok(Self { bits: self.bits, buffers, bytes, length, shape: self.shape })
    }

    /// Removes `dropped` positions behind the first `kept`; the keys behind them are rotated to their new positions.
    pub(super) fn shift(
        &mut self,
        kept: usize,
        dropped: usize,
        rotate: impl Fn(&Array) -> Result<Array>,
    ) -> Result<()> {
        let Some(buffers) = &self.buffers else { return Ok(()) };
        let (first, end, heads) = ((kept + dropped) as i32, self.length as i32, self.shape[0] / 2);
        let rest = slice_axis(&self.unpacked(&buffers[1])?, 2, first, end)?;
        let keys = rotate(&slice_axis(&rest, 1, 0, heads)?)?;
        let moved = concatenate(&[keys, slice_axis(&rest, 1, heads, 2 * heads)?], 1)?;
        let mut shifted = self.fork(kept)?;
        shifted.append(&moved)?;
        for array in shifted.arrays().into_iter().flatten() {
            array.eval()?;
        }
        *self = shifted;
        Ok(())
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// The bytes on the device, with unused positions.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn arrays(&self) -> Option<&[Array; 3]> {
        self.buffers.as_ref()
    }
}

/// Buffers like `like` with room for `needed` positions, the first `used` of them from `old`.
fn with_capacity(
    old: Option<&[Array; 3]>,
    like: &[Array; 3],
    used: usize,
    needed: usize,
) -> Result<[Array; 3]> {
    let moved = |index: usize| -> Result<Array> {
        let width = like[index].dim(2);
        let room = capacity(needed) - if old.is_some() { used } else { 0 };
        let spare = zeros_dtype(&[1, room as i32, width], like[index].dtype())?;
        match old {
            Some(old) => Ok(concatenate(&[slice_axis(&old[index], 1, 0, used as i32)?, spare], 1)?),
            None => Ok(spare),
        }
    };
    Ok([moved(0)?, moved(1)?, moved(2)?])
}
