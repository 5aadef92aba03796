//! A layer state that keeps every position, quantized with a scale and a bias for each group of 64 numbers, as in MLX's quantized
//! weights. The values read are approximate.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, dequantize, quantize};

use super::buffer::Buffer;
use super::capacity::capacity;
use super::pool::{Pooled, Slot};
use super::seen::{PackedRows, Seen};
use crate::array::slice_axis;
use crate::error::{Error, Result};

/// The number of values that share a scale and a bias.
pub(crate) const GROUP: usize = 64;

/// Packed numbers, scales and biases. The first `length` positions are valid.
pub struct QuantizedCache {
    bits: i32,
    storage: Option<Storage>,
    length: usize,
    /// The dimensions `2 H` and `D` of the appended arrays.
    shape: [i32; 2],
}

/// The arrays have the shape `[1, 2 H, capacity, ..]`, or `[1, 1, capacity, ..]` if a group would span two heads.
enum Storage {
    Own([Buffer; 3]),
    Slot(Slot),
}

impl Storage {
    fn positions(&self, range: Range<usize>) -> Result<[Array; 3]> {
        match self {
            Self::Own(buffers) => {
                let [numbers, scales, biases] = buffers.each_ref().map(|buffer| buffer.slice(range.clone()));
                Ok([numbers?, scales?, biases?])
            }
            Self::Slot(slot) => Seen::parts(slot.positions(range)?),
        }
    }

    /// Copies positions to the start of new buffers with this capacity.
    fn moved(&self, kept: Range<usize>, room: usize) -> Result<[Buffer; 3]> {
        let [numbers, scales, biases] = self.positions(kept.clone())?;
        let move_part = |part: Array| Buffer::from_array(part).copy_range(0..kept.len(), room);
        Ok([move_part(numbers)?, move_part(scales)?, move_part(biases)?])
    }
}

impl QuantizedCache {
    pub(super) fn new(bits: u8) -> Self {
        Self { bits: i32::from(bits), storage: None, length: 0, shape: [0; 2] }
    }

    /// Returns true if no group spans two heads. Attention can then read the packed numbers of each head.
    pub(super) fn has_whole_heads(&self) -> bool {
        self.shape[1] > 0 && (self.shape[1] as usize).is_multiple_of(GROUP)
    }

    /// Appends `[1, 2 H, T, D]`, keys before values. Returns all keys and all values.
    pub(super) fn append(&mut self, added: &Array) -> Result<Seen> {
        let (start, end) = (self.length, self.length + added.dim(2) as usize);
        self.shape = [added.dim(1), added.dim(3)];
        let parts = self.quantized(added)?;
        let mut buffers = match self.storage.take() {
            Some(Storage::Own(buffers)) if end <= buffers[0].capacity() => buffers,
            Some(storage) => storage.moved(0..start, capacity(end))?,
            None => {
                let [numbers, scales, biases] = parts.each_ref().map(|part| Buffer::new(part, capacity(end)));
                [numbers?, scales?, biases?]
            }
        };
        for (buffer, part) in buffers.iter_mut().zip(&parts) {
            buffer.write(start, part)?;
        }
        (self.storage, self.length) = (Some(Storage::Own(buffers)), end);
        self.all()?.ok_or_else(|| Error::Internal("a quantized cache is empty after an append".into()))
    }

    /// Returns all keys and all values; `None` before the first position.
    pub(super) fn all(&self) -> Result<Option<Seen>> {
        let Some(storage) = &self.storage else { return Ok(None) };
        if self.has_whole_heads() {
            return self.view(storage.positions(0..self.length)?.into()).map(Some);
        }
        let (all, heads) = (self.unpacked(storage, 0..self.length)?, self.shape[0] / 2);
        Seen::pair(vec![slice_axis(&all, 1, 0, heads)?, slice_axis(&all, 1, heads, 2 * heads)?]).map(Some)
    }

    fn view(&self, parts: Vec<Array>) -> Result<Seen> {
        let rows = PackedRows { arrays: Seen::parts(parts)?, bits: self.bits };
        let (keys, values) = rows.split_heads(self.shape[0] / 2)?;
        Ok(Seen::Packed { keys, values })
    }

    /// Quantizes `[S, 2 H, T, D]` to packed numbers, scales and biases, `[S, 2 H, T, ..]` or `[S, 1, T, ..]` each.
    fn quantized(&self, plain: &Array) -> Result<[Array; 3]> {
        if self.has_whole_heads() {
            return Ok(quantize(plain, GROUP as i32, self.bits)?.into());
        }
        let shape = [plain.dim(0), 1, plain.dim(2), self.shape[0] * self.shape[1]];
        Ok(quantize(plain.swap_axes(1, 2)?.reshape(&shape)?, GROUP as i32, self.bits)?.into())
    }

    /// Dequantizes these positions, `[1, 2 H, n, D]`.
    fn unpacked(&self, storage: &Storage, range: Range<usize>) -> Result<Array> {
        let (count, [heads, size]) = (range.len() as i32, self.shape);
        let [numbers, scales, biases] = storage.positions(range)?;
        let plain = dequantize(numbers, scales, &biases, GROUP as i32, self.bits)?;
        if self.has_whole_heads() {
            return Ok(plain);
        }
        Ok(plain.reshape(&[1, count, heads, size])?.swap_axes(1, 2)?)
    }

    /// Copies the first `length` positions to separate buffers.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        let length = length.min(self.length);
        let storage = match &self.storage {
            Some(storage) if length > 0 => Some(Storage::Own(storage.moved(0..length, capacity(length))?)),
            _ => None,
        };
        Ok(Self { storage, length, ..*self })
    }

    /// Removes the `dropped` positions after the first `kept`. Rotates the keys after them to their new positions.
    pub(super) fn shift(
        &mut self,
        kept: usize,
        dropped: usize,
        rotate: impl Fn(&Array) -> Result<Array>,
    ) -> Result<()> {
        let Some(storage) = &self.storage else { return Ok(()) };
        let heads = self.shape[0] / 2;
        let rest = self.unpacked(storage, kept + dropped..self.length)?;
        let keys = rotate(&slice_axis(&rest, 1, 0, heads)?)?;
        let moved = concatenate(&[keys, slice_axis(&rest, 1, heads, 2 * heads)?], 1)?;
        let mut shifted = self.fork(kept)?;
        shifted.append(&moved)?;
        for array in shifted.arrays() {
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

    /// The bytes on the device, including unused positions.
    pub(super) fn bytes(&self) -> usize {
        match &self.storage {
            None => 0,
            Some(Storage::Own(buffers)) => buffers.iter().map(Buffer::bytes).sum(),
            Some(Storage::Slot(slot)) => slot.bytes(capacity(self.length)),
        }
    }

    /// Returns handles of its buffers, or of the pool's arrays.
    pub(super) fn arrays(&self) -> Vec<Array> {
        match &self.storage {
            None => Vec::new(),
            Some(Storage::Own(buffers)) => buffers.iter().map(|buffer| buffer.array().clone()).collect(),
            Some(Storage::Slot(slot)) => slot.arrays(),
        }
    }
}

impl Pooled for QuantizedCache {
    fn slot(&self) -> Option<&Slot> {
        match &self.storage {
            Some(Storage::Slot(slot)) => Some(slot),
            _ => None,
        }
    }

    fn put(&mut self, slot: Slot) {
        self.storage = Some(Storage::Slot(slot));
    }

    fn kept(&self) -> Range<usize> {
        0..self.length
    }

    fn parts(&self) -> Result<Vec<Array>> {
        let parts = self.storage.as_ref().map(|storage| storage.positions(0..self.length));
        Ok(parts.transpose()?.map_or_else(Vec::new, Vec::from))
    }

    fn packed(&self, added: &[Array]) -> Result<Vec<Array>> {
        Ok(self.quantized(&concatenate(added, 1)?)?.into())
    }

    fn columns(&self, length: usize) -> usize {
        capacity(length)
    }

    fn grow(&mut self, count: usize) {
        self.length += count;
    }

    fn seen(&self, parts: Vec<Array>) -> Result<Seen> {
        self.view(parts)
    }
}
