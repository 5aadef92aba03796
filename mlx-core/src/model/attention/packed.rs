//! Products with quantized keys and values.

use mlx_rs::Array;
use mlx_rs::ops::{dequantize, quantized_matmul};

use crate::cache::{GROUP, PackedRows};
use crate::error::Result;

/// Multiplies queries, `[S, H, n, D]`, with keys; returns `[S, H, n, positions]`.
pub(super) fn scores(queries: &Array, keys: &PackedRows) -> Result<Array> {
    multiply(queries, keys, true)
}

/// Multiplies weights, `[S, H, n, positions]`, with values; returns `[S, H, n, D]`.
pub(super) fn mixed(weights: &Array, values: &PackedRows) -> Result<Array> {
    multiply(weights, values, false)
}

fn multiply(rows: &Array, packed: &PackedRows, transpose: bool) -> Result<Array> {
    let [numbers, scales, biases] = &packed.arrays;
    Ok(quantized_matmul(rows, numbers, scales, biases, transpose, GROUP as i32, packed.bits)?)
}

/// Dequantizes rows to `[S, H, positions, D]`.
pub(super) fn unpacked(packed: &PackedRows) -> Result<Array> {
    let [numbers, scales, biases] = &packed.arrays;
    Ok(dequantize(numbers, scales, biases, GROUP as i32, packed.bits)?)
}
