//! Arrays returned by calls into MLX, and the handler of MLX's errors.

use std::sync::Once;

use ::mlx_sys::{mlx_array, mlx_array_new};
use mlx_rs::Array;

use crate::error::{Error, Result};

/// Returns the array that `call` writes to the given pointer. `message` describes a failure.
pub(super) fn new_array(
    call: impl FnOnce(*mut mlx_array) -> i32,
    message: impl FnOnce() -> String,
) -> Result<Array> {
    catch_errors();
    // SAFETY: the call only creates an empty handle, which owns nothing.
    let mut result = unsafe { mlx_array_new() };
    let status = call(&raw mut result);
    // SAFETY: the handle has no other owner. The value created here frees it once.
    let array = unsafe { Array::from_ptr(result) };
    if status == 0 { Ok(array) } else { Err(Error::Mlx(message())) }
}

/// Installs mlx-rs' error handler, which its first operation does. Without a handler, an error in MLX ends the process.
pub(super) fn catch_errors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(Array::from_f32(0.0).reshape(&[1])));
}
