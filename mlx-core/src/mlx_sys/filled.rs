//! Arrays that a function writes directly into MLX's buffer. MLX can read a tensor of a safetensors file into its buffer, so this passes it
//! a virtual file with a header and a single tensor. The function supplies the bytes of the tensor.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::mpsc::{Sender, channel};

use ::mlx_sys::{
    mlx_io_reader_free, mlx_io_reader_new, mlx_io_vtable, mlx_load_safetensors_reader,
    mlx_map_string_to_array_free, mlx_map_string_to_array_get, mlx_map_string_to_array_new,
    mlx_map_string_to_string_free, mlx_map_string_to_string_new,
};
use mlx_rs::{Array, Stream};
use safetensors::Dtype;

use super::results::{catch_errors, new_array};
use crate::error::{Error, Result};
use crate::stream_errors::report_to_waits_only;

/// The tensor's name in the header.
const NAME: &CStr = c"tensor";

/// The virtual file. MLX makes one call at a time.
struct File<T, F> {
    /// The header after its length prefix.
    header: Vec<u8>,
    /// The position of the next read.
    position: usize,
    /// The total bytes of header and tensor.
    length: usize,
    /// Writes the tensor. Called once.
    fill: Option<F>,
    result: Sender<Result<T>>,
}

/// Returns an evaluated array with the little-endian bytes that `fill` writes, and the result of `fill`. The bytes are arbitrary before.
/// `fill` runs on a thread of MLX.
pub(crate) fn filled<T, F>(dtype: Dtype, shape: &[usize], fill: F) -> Result<(Array, T)>
where
    T: Send + 'static,
    F: FnOnce(&mut [u8]) -> Result<T> + Send + 'static,
{
    let size = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    // A count of 0 would make MLX hand out a null pointer.
    if size == 0 {
        return Err(Error::Array("an array needs at least one element".into()));
    }
    let name = NAME.to_string_lossy();
    let text = format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[0,{size}]}}}}"#);
    let header = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let (sender, results) = channel();
    let length = header.len() + size;
    let array = read(File { header, position: 0, length, fill: Some(fill), result: sender }, || {
        format!("cannot create an array of shape {shape:?} and type {dtype}")
    })?;
    // Another error on the stream would end this wait while `fill` is still writing.
    report_to_waits_only()?;
    array.eval()?;
    let result = results.recv().map_err(|_| Error::Mlx(format!("an array of {shape:?} was not read")))?;
    Ok((array, result?))
}

/// Returns the only tensor of the file, which is not read yet.
fn read<T, F: FnOnce(&mut [u8]) -> Result<T>>(
    file: File<T, F>,
    message: impl FnOnce() -> String,
) -> Result<Array> {
    let functions = mlx_io_vtable {
        is_open: Some(is_open),
        good: Some(is_open),
        tell: Some(tell::<T, F>),
        seek: Some(seek::<T, F>),
        read: Some(read_next::<T, F>),
        read_at_offset: Some(read_at::<T, F>),
        write: Some(write),
        label: Some(label),
        free: Some(free::<T, F>),
    };
    catch_errors();
    let stream = Stream::cpu();
    let file = Box::into_raw(Box::new(file));
    // SAFETY: the functions match the type of the file. The reader owns the file and frees it once, with `free`.
    let reader = unsafe { mlx_io_reader_new(file.cast(), functions) };
    // SAFETY: the calls only create empty maps, which are ours and freed below.
    let (mut arrays, mut metadata) =
        unsafe { (mlx_map_string_to_array_new(), mlx_map_string_to_string_new()) };
    // SAFETY: the pointers and the reader are ours, and the stream outlives the call.
    let status =
        unsafe { mlx_load_safetensors_reader(&raw mut arrays, &raw mut metadata, reader, stream.as_ptr()) };
    let get = |result| match status {
        // SAFETY: the map is alive, the name ends with a zero, and `result` is a handle of our own.
        0 => unsafe { mlx_map_string_to_array_get(result, arrays, NAME.as_ptr()) },
        failed => failed,
    };
    let array = new_array(get, message);
    // SAFETY: none of them has another owner or is used after this. The array holds its own reference to the reader.
    unsafe {
        mlx_map_string_to_array_free(arrays);
        mlx_map_string_to_string_free(metadata);
        mlx_io_reader_free(reader);
    }
    array
}

/// Returns the file that MLX passes as a pointer.
///
/// # Safety
///
/// `file` must come from [`read`] with the same types, and nothing else may use it meanwhile.
unsafe fn of<'f, T, F>(file: *mut c_void) -> &'f mut File<T, F> {
    // SAFETY: as documented.
    unsafe { &mut *file.cast() }
}

unsafe extern "C" fn is_open(_: *mut c_void) -> bool {
    true
}

unsafe extern "C" fn tell<T, F>(file: *mut c_void) -> usize {
    // SAFETY: MLX passes the pointer that the reader was created with, from one thread at a time.
    unsafe { of::<T, F>(file) }.position
}

unsafe extern "C" fn seek<T, F>(file: *mut c_void, offset: i64, whence: c_int) -> c_int {
    // SAFETY: as in `tell`.
    let file = unsafe { of::<T, F>(file) };
    let from = match whence {
        0 => 0,
        1 => file.position,
        _ => file.length,
    };
    match from.checked_add_signed(offset as isize) {
        Some(position) => {
            file.position = position;
            0
        }
        None => -1,
    }
}

/// Reads from the header, the only sequential reads of MLX.
unsafe extern "C" fn read_next<T, F>(file: *mut c_void, bytes: *mut c_char, count: usize) -> usize {
    // SAFETY: as in `tell`.
    let file = unsafe { of::<T, F>(file) };
    let rest = file.header.get(file.position..).unwrap_or_default();
    let read = count.min(rest.len());
    // SAFETY: the buffer has `count` bytes, and nothing else uses it.
    unsafe { bytes.cast::<u8>().copy_from_nonoverlapping(rest.as_ptr(), read) };
    file.position += read;
    read
}

/// Reads the whole tensor. Errors go to the caller of [`filled`], because MLX would throw them on a stream.
unsafe extern "C" fn read_at<T, F: FnOnce(&mut [u8]) -> Result<T>>(
    file: *mut c_void,
    bytes: *mut c_char,
    count: usize,
    offset: usize,
) -> usize {
    // SAFETY: as in `tell`.
    let file = unsafe { of::<T, F>(file) };
    let is_whole = offset == file.header.len() && offset + count == file.length;
    let Some(write) = file.fill.take().filter(|_| is_whole) else { return 0 };
    if bytes.is_null() {
        // MLX does not check the result of its allocator.
        let message = format!("cannot allocate {count} bytes for an array");
        let _ = file.result.send(Err(Error::Array(message)));
        return count;
    }
    // SAFETY: MLX has allocated `count` bytes in a library that is opaque to the compiler, so any byte is a valid `u8`. Nothing else uses
    // them.
    let bytes = unsafe { slice::from_raw_parts_mut(bytes.cast::<u8>(), count) };
    // The receiver is gone if the wait for the array failed.
    let written = catch_unwind(AssertUnwindSafe(|| write(bytes)));
    let _ =
        file.result.send(written.unwrap_or_else(|_| Err(Error::Array("reading an array panicked".into()))));
    count
}

unsafe extern "C" fn write(_: *mut c_void, _: *const c_char, _: usize) -> usize {
    0
}

unsafe extern "C" fn label(_: *mut c_void) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn free<T, F>(file: *mut c_void) {
    // SAFETY: the pointer comes from `Box::into_raw` with these types, and MLX calls this once, at the end.
    drop(unsafe { Box::from_raw(file.cast::<File<T, F>>()) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array;
    use crate::device_lock::device;

    #[test]
    fn an_array_has_what_was_written() {
        let _turn = device();
        for (dtype, bytes) in [(Dtype::U32, 24), (Dtype::U8, 6), (Dtype::BF16, 12), (Dtype::F32, 24)] {
            let write = move |target: &mut [u8]| {
                assert_eq!(target.len(), bytes);
                target.iter_mut().zip(1..).for_each(|(byte, number)| *byte = number);
                Ok(target.len())
            };
            let (array, count) = filled(dtype, &[2, 3], write).expect("it is written");
            let expected: Vec<u8> = (1..=bytes as u8).collect();
            assert_eq!((array::to_bytes(&array).expect("it is there"), count), ((dtype, expected), bytes));
            assert_eq!(array.shape(), [2, 3]);
        }
    }

    #[test]
    fn an_error_is_that_of_the_function() {
        let _turn = device();
        let fail = |_: &mut [u8]| Err::<(), _>(Error::Array("no such bytes".to_owned()));
        let error = filled(Dtype::F16, &[4], fail).expect_err("it fails").to_string();
        assert!(error.contains("no such bytes"), "{error}");
        // An error does not affect the next array.
        assert!(filled(Dtype::F16, &[4], |_| Ok(())).is_ok());
        assert!(filled(Dtype::F16, &[4, 0], |_| Ok(())).is_err());
        // Nor does an array that exceeds any memory.
        assert!(filled(Dtype::U8, &[1 << 30, 1 << 18], |_| Ok(())).is_err());
        assert!(filled(Dtype::F16, &[4], |_| Ok(())).is_ok());
    }
}
