//! MLX's fused gated delta update, which mlx-c 0.7 does not wrap; crates/mlx-extra does. A build that compiles MLX from source lacks that
//! file, so the function is looked up at run time.

use std::sync::OnceLock;

use ::mlx_sys::{mlx_array, mlx_array_new, mlx_stream};
use mlx_rs::{Array, Stream};

use super::results::{catch_errors, new_array};
use crate::error::Result;

/// `mlx_extra_gated_delta_update` in crates/mlx-extra/gated_delta.cpp.
type Update = unsafe extern "C" fn(
    *mut mlx_array,
    *mut mlx_array,
    mlx_array,
    mlx_array,
    mlx_array,
    mlx_array,
    mlx_array,
    mlx_array,
    mlx_stream,
) -> i32;

/// Rows of `n` sequences with `t` rows each, and their states. All arrays are f32.
pub(crate) struct DeltaRows<'a> {
    /// `[n, t, Hk, Dk]`
    pub(crate) queries: &'a Array,
    /// `[n, t, Hk, Dk]`
    pub(crate) keys: &'a Array,
    /// `[n, t, Hv, Dv]`
    pub(crate) values: &'a Array,
    /// `[n, t, Hv]`, from 0 to 1.
    pub(crate) decays: &'a Array,
    /// `[n, t, Hv]`, from 0 to 1.
    pub(crate) corrections: &'a Array,
    /// `[n, Hv, Dv, Dk]`
    pub(crate) memory: &'a Array,
}

/// Returns the outputs of the rows, `[n, t, Hv, Dv]`, and the updated states; `None` if this build lacks the function.
pub(crate) fn gated_delta_update(rows: &DeltaRows) -> Result<Option<(Array, Array)>> {
    let Some(update) = function() else { return Ok(None) };
    let stream = Stream::thread_local_or_default();
    let message = || {
        let (keys, values) = (rows.keys.shape(), rows.values.shape());
        format!("gated_delta_update failed with keys {keys:?} and values {values:?}")
    };
    catch_errors();
    // SAFETY: the call only creates an empty handle, which owns nothing.
    let mut after = unsafe { mlx_array_new() };
    // SAFETY: every handle belongs to a value that outlives the call; the two results are handles of our own.
    let call = |read| unsafe {
        update(
            read,
            &raw mut after,
            rows.queries.as_ptr(),
            rows.keys.as_ptr(),
            rows.values.as_ptr(),
            rows.decays.as_ptr(),
            rows.corrections.as_ptr(),
            rows.memory.as_ptr(),
            stream.as_ptr(),
        )
    };
    let read = new_array(call, message);
    // SAFETY: the handle has no other owner. The value created here frees it once.
    let after = unsafe { Array::from_ptr(after) };
    Ok(Some((read?, after)))
}

/// Looks up the function in the libraries of this process, once.
fn function() -> Option<Update> {
    static FUNCTION: OnceLock<Option<Update>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        let name = c"mlx_extra_gated_delta_update";
        // SAFETY: the name ends with a zero.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: a function of this name exists only in crates/mlx-extra, with this type.
        (!address.is_null()).then(|| unsafe { std::mem::transmute::<*mut libc::c_void, Update>(address) })
    })
}
