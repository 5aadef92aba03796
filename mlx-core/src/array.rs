//! Conversion between Rust memory and device arrays. Invariant: only this file and `mlx_sys/filled.rs`, which reads weights, move numbers
//! in or out.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use bytemuck::Pod;
use half::{bf16, f16};
use mlx_rs::ops::{add, concatenate, multiply};
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, ArrayElement, Dtype};
use safetensors::Dtype as FileDtype;

use crate::error::{Error, Result};

impl From<mlx_rs::error::Exception> for Error {
    fn from(exception: mlx_rs::error::Exception) -> Self {
        Self::Mlx(exception.what().to_owned())
    }
}

/// Returns the device type for a floating-point type of a safetensors file; `None` if the decoder cannot compute with it.
pub fn float_dtype(dtype: FileDtype) -> Option<Dtype> {
    match dtype {
        FileDtype::F32 => Some(Dtype::Float32),
        FileDtype::F16 => Some(Dtype::Float16),
        FileDtype::BF16 => Some(Dtype::Bfloat16),
        _ => None,
    }
}

/// Creates an array of `shape` from the little-endian bytes of a file, in the type of the file: a float, or words of packed weights.
/// The caller must check that the byte length fits the shape.
pub fn from_bytes(bytes: &[u8], dtype: Dtype, shape: &[i32]) -> Result<Array> {
    // With 0 elements, MLX would later return a null pointer.
    if bytes.is_empty() {
        return Err(Error::Array("an array needs at least one element".into()));
    }
    Ok(match dtype {
        Dtype::Float32 => Array::from_slice(&decode(bytes, f32::from_le_bytes), shape),
        Dtype::Float16 => Array::from_slice(&decode(bytes, f16::from_le_bytes), shape),
        Dtype::Bfloat16 => Array::from_slice(&decode(bytes, bf16::from_le_bytes), shape),
        Dtype::Uint32 => Array::from_slice(&decode(bytes, u32::from_le_bytes), shape),
        Dtype::Uint8 => Array::from_slice(bytes, shape),
        other => return Err(Error::Array(format!("{other:?} weights cannot be read"))),
    })
}

/// Converts bytes to numbers. If the byte order and alignment fit, borrows them, since copying a large tensor takes time and memory.
fn decode<T: Pod, const N: usize>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Cow<'_, [T]> {
    if cfg!(target_endian = "little")
        && let Ok(numbers) = bytemuck::try_cast_slice(bytes)
    {
        return Cow::Borrowed(numbers);
    }
    let (chunks, _) = bytes.as_chunks::<N>();
    Cow::Owned(chunks.iter().map(|chunk| convert(*chunk)).collect())
}

/// Returns the elements of an array in row-major order, without a copy. Waits until they are computed.
pub fn host<T: ArrayElement>(array: &Array) -> Result<&[T]> {
    array.try_as_slice::<T>().map_err(|error| Error::Mlx(error.to_string()))
}

/// Returns the result of [`float_dtype`], or an error with the name of the type.
pub fn known_float(dtype: FileDtype) -> Result<Dtype> {
    float_dtype(dtype).ok_or_else(|| Error::Array(format!("{dtype:?} is not a float type")))
}

/// Creates an array from the bytes of a tensor in a file: floats, words or bytes.
pub fn of_file(bytes: &[u8], dtype: FileDtype, shape: &[usize]) -> Result<Array> {
    let shape: Vec<i32> = shape.iter().map(|&size| size as i32).collect();
    let dtype = match dtype {
        FileDtype::U32 => Dtype::Uint32,
        FileDtype::U8 => Dtype::Uint8,
        float => known_float(float)?,
    };
    from_bytes(bytes, dtype, &shape)
}

/// Converts floats of a file from type `from` to an array of `shape` and type `to`. [`float_dtype`] must support both types.
pub fn floats(bytes: &[u8], from: FileDtype, to: FileDtype, shape: &[i32]) -> Result<Array> {
    Ok(from_bytes(bytes, known_float(from)?, shape)?.as_dtype(known_float(to)?)?)
}

/// Like [`floats`], with 1 added in type `from`.
pub fn plus_one(bytes: &[u8], from: FileDtype, to: FileDtype, shape: &[i32]) -> Result<Array> {
    let floats = floats(bytes, from, from, shape)?;
    let sum = add(&floats, scalar_like(1.0, &floats)?)?;
    Ok(sum.as_dtype(known_float(to)?)?)
}

/// Like [`floats`] for a matrix of `shape`, transposed.
pub fn transposed(bytes: &[u8], [from, to]: [FileDtype; 2], shape: &[i32]) -> Result<Array> {
    Ok(floats(bytes, from, to, shape)?.swap_axes(0, 1)?.contiguous()?)
}

/// Like [`floats`], multiplied by `factor` in type `from`. Each row is also multiplied by its element of `by_row`, unless that is empty.
pub fn times(
    bytes: &[u8],
    [from, to]: [FileDtype; 2],
    shape: &[i32],
    factor: f32,
    by_row: &[f32],
) -> Result<Array> {
    let floats = floats(bytes, from, from, shape)?;
    let mut factors = scalar_like(factor, &floats)?;
    if !by_row.is_empty() {
        let rows = Array::from_slice(by_row, &[by_row.len() as i32, 1]).as_dtype(floats.dtype())?;
        factors = multiply(rows, factors)?;
    }
    let known = float_dtype(to).ok_or_else(|| Error::Array(format!("{to:?} is not a float type")))?;
    Ok(multiply(&floats, factors)?.as_dtype(known)?)
}

/// Returns the elements of an array of floats or packed words, little-endian and in row-major order, with their type in files. Waits until
/// they are computed.
pub fn to_bytes(array: &Array) -> Result<(FileDtype, Vec<u8>)> {
    let array = array.contiguous()?;
    Ok(match array.dtype() {
        Dtype::Float32 => (FileDtype::F32, encode(host::<f32>(&array)?, f32::to_le_bytes)),
        Dtype::Float16 => (FileDtype::F16, encode(host::<f16>(&array)?, f16::to_le_bytes)),
        Dtype::Bfloat16 => (FileDtype::BF16, encode(host::<bf16>(&array)?, bf16::to_le_bytes)),
        Dtype::Uint32 => (FileDtype::U32, encode(host::<u32>(&array)?, u32::to_le_bytes)),
        Dtype::Uint8 => (FileDtype::U8, host::<u8>(&array)?.to_vec()),
        other => return Err(Error::Array(format!("{other:?} arrays cannot be written"))),
    })
}

fn encode<T: Copy, const N: usize>(values: &[T], convert: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * N];
    for (place, value) in bytes.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *place = convert(*value);
    }
    bytes
}

/// Creates a device array of token ids with shape `[ids.len()]`.
pub fn from_tokens(ids: &[u32]) -> Array {
    Array::from_slice(ids, &[ids.len() as i32])
}

/// Rows of logits in f32, for transfer to the host.
#[derive(Debug, Clone)]
pub struct Rows(Array);

impl Rows {
    /// Converts rows, `[R, V]`, to f32 without computing them.
    pub fn new(logits: &Array) -> Result<Self> {
        Ok(Self(logits.as_dtype(Dtype::Float32)?.contiguous()?))
    }

    /// The rows on the device, `[R, V]`.
    pub(crate) fn array(&self) -> &Array {
        &self.0
    }

    /// Starts to compute the rows and returns at once.
    pub fn start(&self) -> Result<()> {
        Ok(async_eval([&self.0])?)
    }

    /// Waits until they are computed.
    pub fn wait(&self) -> Result<()> {
        Ok(self.0.eval()?)
    }

    /// The number of logits in a row.
    pub fn width(&self) -> usize {
        self.0.dim(-1) as usize
    }

    /// All rows, one after the other. Waits until they are computed.
    pub fn values(&self) -> Result<&[f32]> {
        host(&self.0)
    }
}

/// Concatenates matrices along their rows, or stacks of equally many matrices, and evaluates the result.
pub fn stacked(parts: &[&Array]) -> Result<Array> {
    if let [only] = parts {
        return Ok((*only).clone());
    }
    let rows = if parts.first().is_some_and(|part| part.ndim() > 1) { -2 } else { 0 };
    let stacked = concatenate(parts, rows)?;
    stacked.eval()?;
    Ok(stacked)
}

/// Returns the elements `start..end` of `axis`.
pub fn slice_axis(array: &Array, axis: usize, start: i32, end: i32) -> Result<Array> {
    use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, TryIndexOp};
    let mut operations: Vec<ArrayIndexOp> = (0..axis).map(|_| (..).index_op()).collect();
    operations.push((start..end).index_op());
    Ok(array.try_index(operations.as_slice())?)
}

/// Returns these rows of the first axis, in this order. For all rows in order, returns a handle of the same array.
pub fn take_rows(array: &Array, rows: &[usize]) -> Result<Array> {
    if rows.iter().copied().eq(0..array.dim(0) as usize) {
        return Ok(array.clone());
    }
    if let [row] = rows {
        return slice_axis(array, 0, *row as i32, *row as i32 + 1);
    }
    let rows: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
    Ok(array.take_axis(Array::from_slice(&rows, &[rows.len() as i32]), 0)?)
}

/// Splits `axis` before `place`. This is one operation; two slices would be two.
pub fn split_axis(array: &Array, axis: usize, place: i32) -> Result<(Array, Array)> {
    let mut parts = array.split_at_indices(&[place], axis as i32)?.into_iter();
    parts.next().zip(parts.next()).ok_or_else(|| Error::Array("a split did not return two parts".into()))
}

/// Converts `value` to the type of `like`. An f32 scalar would convert half-precision rows to f32.
pub fn scalar_like(value: f32, like: &Array) -> Result<Array> {
    Ok(Array::from_f32(value).as_dtype(like.dtype())?)
}

/// Writes the graph of pending operations of `array` to a file, in the Graphviz language.
#[cfg(feature = "graph")]
pub(crate) fn write_graph(array: &Array, path: &std::path::Path) -> Result<()> {
    crate::mlx_sys::write_graph(array, path)
}

/// The peak bytes that MLX has held in arrays since the start of the process or [`reset_peak_memory`].
pub fn peak_memory() -> Result<usize> {
    Ok(mlx_rs::memory::peak_memory()?)
}

/// The bytes that MLX currently holds in arrays.
pub fn active_memory() -> Result<usize> {
    Ok(mlx_rs::memory::active_memory()?)
}

/// Resets the peak of [`peak_memory`].
pub fn reset_peak_memory() -> Result<()> {
    Ok(mlx_rs::memory::reset_peak_memory()?)
}

/// Returns the memory that MLX caches for reuse to the system.
pub fn drop_freed_memory() -> Result<()> {
    Ok(mlx_rs::memory::clear_cache()?)
}

/// Limits the freed memory that MLX caches for reuse, in bytes.
pub fn limit_freed_memory(bytes: u64) -> Result<()> {
    static LIMIT: Mutex<Option<u64>> = Mutex::new(None);
    let mut limit = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    if *limit != Some(bytes) {
        // Before the change, MLX waits for the streams of all threads and reports their errors, one stream at a time. These errors do not
        // belong to this caller.
        let change = || mlx_rs::memory::set_cache_limit(usize::try_from(bytes).unwrap_or(usize::MAX));
        (0..32).fold(change(), |done, _| done.or_else(|_| change()))?;
        *limit = Some(bytes);
    }
    Ok(())
}
