//! Calls into MLX that mlx-rs 0.33 does not wrap well. Its functions for packed weights only support affine mode. Its writes to part of an
//! array reshape the update twice. It fills arrays only by copying, and cannot export graphs. Invariant: only this file, its folder, macos.rs
//! and hangup.rs contain unsafe code.
#![expect(unsafe_code, reason = "mlx-sys has no safe interface")]

mod distributed;
mod filled;
mod gated_delta;
mod results;

use std::ffi::CStr;

use ::mlx_sys::{
    mlx_array, mlx_array_new, mlx_dequantize, mlx_device_count, mlx_device_free, mlx_device_info,
    mlx_device_info_free, mlx_device_info_get, mlx_device_info_get_size, mlx_device_info_get_string,
    mlx_device_info_new, mlx_device_new, mlx_device_type__MLX_GPU, mlx_gather_qmm, mlx_get_default_device,
    mlx_optional_dtype, mlx_optional_int, mlx_quantize, mlx_quantized_matmul, mlx_scatter, mlx_slice_update,
    mlx_slice_update_add, mlx_stream, mlx_string_data, mlx_string_free, mlx_string_new,
    mlx_vector_array_append_value, mlx_vector_array_free, mlx_vector_array_get, mlx_vector_array_new,
    mlx_vector_array_size, mlx_version,
};
use mlx_rs::{Array, Dtype, Stream};

use crate::error::{Error, Result};
pub(crate) use distributed::{Group, has_group_backend};
pub(crate) use filled::filled;
pub(crate) use gated_delta::{DeltaRows, gated_delta_update};
use results::{catch_errors, new_array};

/// The status of mlx-c if a device has no such value.
const NO_SUCH_VALUE: i32 = 2;

/// The variable that lets a GPU use TF32 in f32 products. MLX reads it once, at the first product.
pub(crate) const TF32: &str = "MLX_ENABLE_TF32";

/// The variable that makes MLX for NVIDIA GPUs count cache misses. MLX reads it when it creates a cache, once per thread.
const CACHE_CHECK: &str = "MLX_ENABLE_CACHE_THRASHING_CHECK";

/// Environment variables for MLX, and our defaults.
///
/// By default, GPUs with TF32 hardware reduce the precision of f32 products, except in steps of one row. A row's numbers would then depend on
/// the other rows of its batch.
///
/// A plan cache (attention by cuDNN, graphs) counts its misses while its thread lives. Beyond twice its size, each further miss is an error.
/// Each prompt length needs a plan, so a server that has seen 512 lengths would fail at every new one. A larger size only delays this.
/// Without the check, the oldest plan is evicted.
const SETTINGS: [(&str, &str); 2] = [(TF32, "0"), (CACHE_CHECK, "0")];

/// Makes f32 products keep full precision and MLX's caches evict old entries, unless the environment says otherwise. Call it before the
/// program starts other threads.
pub fn set_mlx_defaults() {
    for (name, value) in missing(|name| std::env::var_os(name).is_some()) {
        // SAFETY: as documented, no other thread reads the environment at the same time.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Returns true if a variable has the value that [`set_mlx_defaults`] gives it.
pub fn is_mlx_default(name: &str, value: &str) -> bool {
    SETTINGS.contains(&(name, value))
}

/// Returns the settings that are missing in an environment.
fn missing(has: impl Fn(&str) -> bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    SETTINGS.into_iter().filter(move |setting| !has(setting.0))
}

/// Returns the version of the MLX library in use, which may differ from the one at compile time.
pub(crate) fn version() -> Result<String> {
    // SAFETY: the call only creates an empty string, which is ours and freed below.
    let mut text = unsafe { mlx_string_new() };
    // SAFETY: the pointer is to our variable.
    let status = unsafe { mlx_version(&raw mut text) };
    let found = (status == 0).then(|| {
        // SAFETY: the string is alive, ends with a zero, and is copied before it is freed.
        unsafe { CStr::from_ptr(mlx_string_data(text)) }.to_string_lossy().into_owned()
    });
    // SAFETY: the string has no other owner and is not used after this.
    unsafe { mlx_string_free(text) };
    found.ok_or_else(|| Error::Mlx("the library does not report its version".to_owned()))
}

/// Returns true if MLX finds a usable GPU.
pub(crate) fn has_gpu() -> bool {
    let mut count = 0;
    // SAFETY: the variable is ours. Without a GPU the count is 0, not an error, so no error handler is needed.
    let status = unsafe { mlx_device_count(&raw mut count, mlx_device_type__MLX_GPU) };
    status == 0 && count > 0
}

/// Returns a number that the default device reports for a key; `None` if there is none.
pub(crate) fn device_size(key: &CStr) -> Result<Option<u64>> {
    let mut size = 0;
    // SAFETY: the value is alive, the key ends with a zero, and the pointer is to our variable.
    let read = |info| unsafe { mlx_device_info_get_size(&raw mut size, info, key.as_ptr()) };
    Ok(device_says(key, read)?.then_some(size as u64))
}

/// Returns a string that the default device reports for a key; `None` if there is none.
pub(crate) fn device_text(key: &CStr) -> Result<Option<String>> {
    let mut found = String::new();
    let read = |info| {
        let mut text = std::ptr::null();
        // SAFETY: the value is alive, the key ends with a zero, and the pointer is to our variable.
        let status = unsafe { mlx_device_info_get_string(&raw mut text, info, key.as_ptr()) };
        if status == 0 {
            // SAFETY: the string belongs to the value, ends with a zero, and is copied here.
            found = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        }
        status
    };
    Ok(device_says(key, read)?.then_some(found))
}

/// Reads a value for a key. Returns false if there is no value of its type.
fn device_says(key: &CStr, read: impl FnOnce(mlx_device_info) -> i32) -> Result<bool> {
    // SAFETY: the calls only create empty values, which are ours and freed below.
    let (mut device, mut info) = unsafe { (mlx_device_new(), mlx_device_info_new()) };
    // SAFETY: the pointers are to our variables.
    let known =
        unsafe { mlx_get_default_device(&raw mut device) | mlx_device_info_get(&raw mut info, device) };
    let status = if known == 0 { read(info) } else { known };
    // SAFETY: the values have no other owner and are not used after this.
    unsafe {
        mlx_device_info_free(info);
        mlx_device_free(device);
    }
    match (known, status) {
        (0, 0) => Ok(true),
        (0, NO_SUCH_VALUE) => Ok(false),
        _ => Err(Error::Mlx(format!("the device does not report its {}", key.to_string_lossy()))),
    }
}

/// A packed matrix as an argument of MLX's functions.
#[derive(Clone, Copy)]
pub(crate) struct PackedMatrix<'a> {
    /// `[..., output, words]` of u32.
    pub(crate) weight: &'a Array,
    /// `[..., output, groups]`
    pub(crate) scales: &'a Array,
    /// Same shape as the scales. Only in affine mode.
    pub(crate) biases: Option<&'a Array>,
    /// The number of values that share a scale.
    pub(crate) group: i32,
    /// The number of bits per value.
    pub(crate) bits: i32,
    /// MLX's name of the quantization mode.
    pub(crate) mode: &'static CStr,
}

/// Multiplies `[..., input]` by the transpose of a packed matrix. Returns `[..., output]`.
pub(crate) fn quantized_matmul(input: &Array, packed: PackedMatrix) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    let call = |result| {
        // SAFETY: every handle belongs to a value that outlives the call, or is empty. `result` is a handle of our own, and `mode` ends with a
        // zero.
        unsafe {
            mlx_quantized_matmul(
                result,
                input.as_ptr(),
                packed.weight.as_ptr(),
                packed.scales.as_ptr(),
                packed.biases.map_or(mlx_array_new(), Array::as_ptr),
                true,
                optional(packed.group),
                optional(packed.bits),
                packed.mode.as_ptr(),
                stream.as_ptr(),
            )
        }
    };
    new_array(call, || failure("quantized_matmul", packed))
}

/// Dequantizes a packed matrix to `[..., output, input]`.
pub(crate) fn dequantize(packed: PackedMatrix, dtype: Dtype) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    let dtype = mlx_optional_dtype { value: dtype.into(), has_value: true };
    let call = |result| {
        // SAFETY: every handle belongs to a value that outlives the call, or is empty. `result` is a handle of our own, and `mode` ends with a
        // zero.
        unsafe {
            mlx_dequantize(
                result,
                packed.weight.as_ptr(),
                packed.scales.as_ptr(),
                packed.biases.map_or(mlx_array_new(), Array::as_ptr),
                optional(packed.group),
                optional(packed.bits),
                packed.mode.as_ptr(),
                mlx_array_new(),
                dtype,
                stream.as_ptr(),
            )
        }
    };
    new_array(call, || failure("dequantize", packed))
}

/// Quantizes a matrix of floats, `[..., output, input]`. Returns the words, the scales and, in affine mode, the biases.
pub(crate) fn quantize(matrix: &Array, group: i32, bits: i32, mode: &'static CStr) -> Result<Vec<Array>> {
    catch_errors();
    let stream = Stream::thread_local_or_default();
    let message = || {
        let shape = matrix.shape();
        format!("quantize failed in mode {mode:?} with {bits} bits, groups of {group}, weights {shape:?}")
    };
    // SAFETY: the call only creates an empty list, which is ours and freed below.
    let mut parts = unsafe { mlx_vector_array_new() };
    // SAFETY: every handle belongs to a value that outlives the call, or is empty. `mode` ends with a zero.
    let status = unsafe {
        let (matrix, none) = (matrix.as_ptr(), mlx_array_new());
        mlx_quantize(
            &raw mut parts,
            matrix,
            optional(group),
            optional(bits),
            mode.as_ptr(),
            none,
            stream.as_ptr(),
        )
    };
    // SAFETY: the list is alive, also when its elements are taken below.
    let count = if status == 0 { unsafe { mlx_vector_array_size(parts) } } else { 0 };
    // SAFETY: as above, and `index` is below the count. The new array shares its data with the list's.
    let part = |index| new_array(|result| unsafe { mlx_vector_array_get(result, parts, index) }, message);
    let arrays: Result<Vec<Array>> = (0..count).map(part).collect();
    // SAFETY: the list has no other owner and is not used after this.
    unsafe { mlx_vector_array_free(parts) };
    if status == 0 { arrays } else { Err(Error::Mlx(message())) }
}

/// Returns `array` with the elements from `start` to `stop` of every axis replaced by `update`. Copies nothing if nothing else holds `array`
/// when this is computed.
pub(crate) fn slice_update<const N: usize>(
    array: &Array,
    update: &Array,
    start: [i32; N],
    stop: [i32; N],
) -> Result<Array> {
    updated(mlx_slice_update, array, update, start, stop)
}

/// Like [`slice_update`], but adds `update`, which may have fewer axes.
pub(crate) fn slice_update_add<const N: usize>(
    array: &Array,
    update: &Array,
    start: [i32; N],
    stop: [i32; N],
) -> Result<Array> {
    updated(mlx_slice_update_add, array, update, start, stop)
}

/// The signature of MLX's functions that write to part of an array. The number of elements follows each pointer.
type Update = unsafe extern "C" fn(
    *mut mlx_array,
    mlx_array,
    mlx_array,
    *const i32,
    usize,
    *const i32,
    usize,
    *const i32,
    usize,
    mlx_stream,
) -> i32;

fn updated<const N: usize>(
    function: Update,
    array: &Array,
    update: &Array,
    start: [i32; N],
    stop: [i32; N],
) -> Result<Array> {
    let (stream, strides) = (Stream::thread_local_or_default(), [1; N]);
    let (array, update) = (array.as_ptr(), update.as_ptr());
    let (from, to, by) = (start.as_ptr(), stop.as_ptr(), strides.as_ptr());
    // SAFETY: every handle belongs to a value that outlives the call, the result is a handle of our own, and each pointer is to N numbers.
    let call = |result| unsafe { function(result, array, update, from, N, to, N, by, N, stream.as_ptr()) };
    new_array(call, || format!("cannot write to the elements from {start:?} to {stop:?}"))
}

/// Returns `array` with `updates` at these `indices` of these axes, `[n]` for each axis. The shape of `updates` is `[n]`, then the shape of
/// `array` with 1 for each of the axes. Copies nothing if nothing else holds `array` when this is computed.
pub(crate) fn scatter(array: &Array, indices: &[&Array], updates: &Array, axes: &[i32]) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: the call only creates an empty list, which is ours and freed below.
    let list = unsafe { mlx_vector_array_new() };
    let listed = indices.iter().all(|index| {
        // SAFETY: the list and the array are alive. The list creates its own handle.
        unsafe { mlx_vector_array_append_value(list, index.as_ptr()) == 0 }
    });
    let (old, new) = (array.as_ptr(), updates.as_ptr());
    let message = || format!("cannot write {:?} into {:?} at {axes:?}", updates.shape(), array.shape());
    let call = |result| {
        if !listed {
            return 1;
        }
        // SAFETY: every handle belongs to a value that outlives the call, the result is a handle of our own, and the pointer is to the given
        // number of axes.
        unsafe { mlx_scatter(result, old, list, new, axes.as_ptr(), axes.len(), stream.as_ptr()) }
    };
    let result = new_array(call, message);
    // SAFETY: the list has no other owner and is not used after this.
    unsafe { mlx_vector_array_free(list) };
    result
}

/// Writes the graph of pending operations of `array` to a file, in the Graphviz language.
#[cfg(feature = "graph")]
pub(crate) fn write_graph(array: &Array, path: &std::path::Path) -> Result<()> {
    use ::mlx_sys::{
        fclose, fopen, mlx_export_to_dot, mlx_node_namer_free, mlx_node_namer_new, mlx_vector_array_new_value,
    };
    catch_errors();
    let failed = || Error::Mlx(format!("cannot write the graph to {}", path.display()));
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| failed())?;
    // SAFETY: the name and the mode end with a zero. The file is checked before use and closed once. The namer and the vector are our own
    // and freed once. The array outlives the calls.
    let status = unsafe {
        let file = fopen(name.as_ptr(), c"w".as_ptr());
        if file.is_null() {
            return Err(failed());
        }
        let (namer, arrays) = (mlx_node_namer_new(), mlx_vector_array_new_value(array.as_ptr()));
        let status = mlx_export_to_dot(file, namer, arrays);
        mlx_vector_array_free(arrays);
        mlx_node_namer_free(namer);
        status | fclose(file)
    };
    if status == 0 { Ok(()) } else { Err(failed()) }
}

fn optional(value: i32) -> mlx_optional_int {
    mlx_optional_int { value, has_value: true }
}

/// Multiplies `[.., 1, input]` by the transposes of the packed matrices that `chosen` selects from a stack. Returns `[.., 1, output]`. The
/// shapes of `chosen` and of the rows must agree, except for axes of 1. Set `sorted` if `chosen` ascends.
pub(crate) fn gather_quantized_matmul(
    input: &Array,
    packed: PackedMatrix,
    chosen: &Array,
    sorted: bool,
) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    let call = |result| {
        // SAFETY: every handle belongs to a value that outlives the call, or is empty. `result` is a handle of our own, and `mode` ends with a
        // zero.
        unsafe {
            mlx_gather_qmm(
                result,
                input.as_ptr(),
                packed.weight.as_ptr(),
                packed.scales.as_ptr(),
                packed.biases.map_or(mlx_array_new(), Array::as_ptr),
                mlx_array_new(),
                chosen.as_ptr(),
                true,
                optional(packed.group),
                optional(packed.bits),
                packed.mode.as_ptr(),
                sorted,
                stream.as_ptr(),
            )
        }
    };
    new_array(call, || failure("gather_qmm", packed))
}

fn failure(name: &str, packed: PackedMatrix) -> String {
    let PackedMatrix { weight, scales, group, bits, mode, .. } = packed;
    let (weight, scales) = (weight.shape(), scales.shape());
    format!(
        "{name} failed in mode {mode:?} with {bits} bits, groups of {group}, weights {weight:?} and scales {scales:?}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_environment_lacks_is_set() {
        assert_eq!(missing(|_| false).collect::<Vec<_>>(), SETTINGS);
        assert_eq!(missing(|name| name == TF32).collect::<Vec<_>>(), [(CACHE_CHECK, "0")]);
        assert_eq!(missing(|_| true).count(), 0);
    }
}
