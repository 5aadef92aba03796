//! The calls into MLX that mlx-rs 0.33 has no safe form of: its functions for packed weights always say "affine". Invariant: the only
//! file of the project that holds unsafe code.
#![expect(unsafe_code, reason = "mlx-sys has no safe interface")]

use std::ffi::CStr;
use std::sync::Once;

use ::mlx_sys::{
    mlx_array, mlx_array_new, mlx_dequantize, mlx_optional_dtype, mlx_optional_int, mlx_quantized_matmul,
};
use mlx_rs::{Array, Dtype, Stream};

use crate::error::{Error, Result};

/// A packed matrix as MLX's functions take it.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    /// `[..., output, words]` of u32.
    pub(crate) weight: &'a Array,
    /// `[..., output, groups]`
    pub(crate) scales: &'a Array,
    /// Like the scales, in affine mode alone.
    pub(crate) biases: Option<&'a Array>,
    /// Numbers that share a scale.
    pub(crate) group: i32,
    /// Bits of a number.
    pub(crate) bits: i32,
    /// MLX's name for how the bits are read.
    pub(crate) mode: &'static CStr,
}

/// `[..., input]` times the transpose of a packed matrix: `[..., output]`.
pub(crate) fn quantized_matmul(input: &Array, packed: Operand) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    new_array("quantized_matmul", packed, |result, biases| {
        // SAFETY: every handle belongs to a value that outlives the call, `result` is a handle of our own, `mode` ends with a zero.
        unsafe {
            mlx_quantized_matmul(
                result,
                input.as_ptr(),
                packed.weight.as_ptr(),
                packed.scales.as_ptr(),
                biases,
                true,
                given(packed.group),
                given(packed.bits),
                packed.mode.as_ptr(),
                stream.as_ptr(),
            )
        }
    })
}

/// The numbers of a packed matrix, `[..., output, input]`.
pub(crate) fn dequantize(packed: Operand, dtype: Dtype) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    let dtype = mlx_optional_dtype { value: dtype.into(), has_value: true };
    new_array("dequantize", packed, |result, biases| {
        // SAFETY: every handle belongs to a value that outlives the call, `result` is a handle of our own, `mode` ends with a zero.
        unsafe {
            mlx_dequantize(
                result,
                packed.weight.as_ptr(),
                packed.scales.as_ptr(),
                biases,
                given(packed.group),
                given(packed.bits),
                packed.mode.as_ptr(),
                mlx_array_new(),
                dtype,
                stream.as_ptr(),
            )
        }
    })
}

fn given(value: i32) -> mlx_optional_int {
    mlx_optional_int { value, has_value: true }
}

/// Owns what `call` makes. It is given a place for the result and the biases, or the empty handle that stands for none.
fn new_array(
    name: &str,
    packed: Operand,
    call: impl FnOnce(*mut mlx_array, mlx_array) -> i32,
) -> Result<Array> {
    catch_errors();
    // SAFETY: it only makes empty handles, which own nothing.
    let (mut result, none) = unsafe { (mlx_array_new(), mlx_array_new()) };
    let status = call(&raw mut result, packed.biases.map_or(none, Array::as_ptr));
    // SAFETY: the handle is nobody else's; it is freed once, by the value that owns it from here on.
    let array = unsafe { Array::from_ptr(result) };
    if status == 0 {
        return Ok(array);
    }
    let Operand { weight, scales, group, bits, mode, .. } = packed;
    let message = format!(
        "{name} failed in mode {mode:?} with {bits} bits, groups of {group}, weights {:?} and scales {:?}",
        weight.shape(),
        scales.shape()
    );
    Err(Error::Mlx(message))
}

/// MLX ends the process on an error unless somebody catches it; mlx-rs begins to with its first operation.
fn catch_errors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(Array::from_f32(0.0).reshape(&[1])));
}
