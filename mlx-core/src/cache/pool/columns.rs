//! Conversion between positions in order and the columns of a slot. Position `p` is in column `p % capacity`.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, zeros_dtype};

use crate::array::slice_axis;
use crate::error::Result;

/// Returns the positions of `range`, `[S, H, n, D]`, from columns, `[S, H, capacity, D]`.
pub(super) fn in_order(columns: &Array, range: Range<usize>) -> Result<Array> {
    let capacity = columns.dim(2) as usize;
    let start = range.start % capacity.max(1);
    if start + range.len() <= capacity {
        return slice_axis(columns, 2, start as i32, (start + range.len()) as i32);
    }
    let places: Vec<i32> = range.map(|position| (position % capacity) as i32).collect();
    Ok(columns.take_axis(Array::from_slice(&places, &[places.len() as i32]), 2)?)
}

/// Returns columns, `[1, H, capacity, D]`, with the newest positions of `range`, `[1, H, n, D]`.
pub(super) fn in_columns(positions: &Array, range: Range<usize>, capacity: usize) -> Result<Array> {
    if range.end <= capacity && range.start == 0 {
        return padded(positions, 2, capacity);
    }
    let mut places = vec![0; capacity];
    for position in range.clone().rev().take(capacity) {
        places[position % capacity] = (position - range.start) as i32;
    }
    Ok(positions.take_axis(Array::from_slice(&places, &[capacity as i32]), 2)?)
}

/// Pads an axis with zeros up to `size`.
pub(super) fn padded(array: &Array, axis: i32, size: usize) -> Result<Array> {
    let missing = size as i32 - array.dim(axis);
    if missing <= 0 {
        return Ok(array.clone());
    }
    let mut shape = array.shape().to_vec();
    shape[axis as usize] = missing;
    Ok(concatenate(&[array, &zeros_dtype(&shape, array.dtype())?], axis)?)
}
