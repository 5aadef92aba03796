//! Arrays whose numbers a function of ours writes to where they lie. MLX reads a tensor of a safetensors file so; here it gets one that
//! is made up, a header and a single tensor, and what it takes for the tensor's bytes comes from that function.

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

/// The file that MLX reads. MLX never calls it twice at a time.
struct File<T, F> {
    /// The header with its length before it.
    header: Vec<u8>,
    /// Where MLX reads next.
    position: usize,
    /// The bytes of header and tensor.
    length: usize,
    /// Writes the tensor; called once.
    fill: Option<F>,
    result: Sender<Result<T>>,
}

/// An array of this type and shape, computed, whose little-endian bytes `fill` wrote, and what `fill` returned. The bytes are arbitrary
/// before. `fill` runs on a thread of MLX.
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
        format!("no array of {shape:?} in {dtype} can be made")
    })?;
    // An error of something else on the stream would end this wait while the bytes are still written.
    report_to_waits_only()?;
    array.eval()?;
    let result = results.recv().map_err(|_| Error::Mlx(format!("an array of {shape:?} was not read")))?;
    Ok((array, result?))
}

/// The only tensor of the file, not read yet.
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
    // SAFETY: the functions are those of the file's type, and the reader owns it: it frees the file with `free`, once.
    let reader = unsafe { mlx_io_reader_new(file.cast(), functions) };
    // SAFETY: they only make empty maps, which are ours and freed below.
    let (mut arrays, mut metadata) =
        unsafe { (mlx_map_string_to_array_new(), mlx_map_string_to_string_new()) };
    // SAFETY: the places and the reader are ours, the stream outlives the call.
    let status =
        unsafe { mlx_load_safetensors_reader(&raw mut arrays, &raw mut metadata, reader, stream.as_ptr()) };
    let get = |result| match status {
        // SAFETY: the map is alive, the name ends with a zero, and `result` is a handle of our own.
        0 => unsafe { mlx_map_string_to_array_get(result, arrays, NAME.as_ptr()) },
        failed => failed,
    };
    let array = new_array(get, message);
    // SAFETY: none has another owner or is used after this; the array keeps what it needs of the reader.
    unsafe {
        mlx_map_string_to_array_free(arrays);
        mlx_map_string_to_string_free(metadata);
        mlx_io_reader_free(reader);
    }
    array
}

/// What MLX got as the file.
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
    // SAFETY: MLX passes what the reader was made with, from one thread at a time.
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

/// Reads of the header, which is all that MLX reads in order.
unsafe extern "C" fn read_next<T, F>(file: *mut c_void, bytes: *mut c_char, count: usize) -> usize {
    // SAFETY: as in `tell`.
    let file = unsafe { of::<T, F>(file) };
    let rest = file.header.get(file.position..).unwrap_or_default();
    let read = count.min(rest.len());
    // SAFETY: MLX has room for `count` bytes there, which nothing else uses.
    unsafe { bytes.cast::<u8>().copy_from_nonoverlapping(rest.as_ptr(), read) };
    file.position += read;
    read
}

/// Reads the tensor, all of it. An error goes to the caller of [`filled`]: MLX would throw it on a stream.
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
        // MLX does not check what its allocator gives it.
        let message = format!("there is no memory for an array of {count} bytes");
        let _ = file.result.send(Err(Error::Array(message)));
        return count;
    }
    // SAFETY: MLX has allocated `count` bytes there, which nothing else uses, in a library that the compiler cannot look into: any byte
    // that is there is a `u8`.
    let bytes = unsafe { slice::from_raw_parts_mut(bytes.cast::<u8>(), count) };
    // There is no receiver if the wait for the array failed.
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
    // SAFETY: it was made by `Box::into_raw` with these types, and MLX calls this once, at the end.
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
        // The next one is not disturbed.
        assert!(filled(Dtype::F16, &[4], |_| Ok(())).is_ok());
        assert!(filled(Dtype::F16, &[4, 0], |_| Ok(())).is_err());
        // Nor is it by one that no memory is large enough for.
        assert!(filled(Dtype::U8, &[1 << 30, 1 << 18], |_| Ok(())).is_err());
        assert!(filled(Dtype::F16, &[4], |_| Ok(())).is_ok());
    }
}
