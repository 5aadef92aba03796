//! The tensors of an npz file: a zip archive of npy files, as NumPy and MLX write it. Only archives without compression are read, since their
//! tensors can be read at any offset.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use safetensors::Dtype;
use zip::{CompressionMethod, ZipArchive};

use super::entry::Entry;
use crate::error::{Error, Result};

/// The first bytes of an npy file.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The maximum length of the header of an npy file. Headers of tensors have about a hundred bytes.
const MAX_HEADER_BYTES: usize = 1 << 16;

/// Reads the directory of an archive and the header of each tensor. Returns the tensors with their offsets in the file.
pub(super) fn read(path: &Path, file: &File) -> Result<Vec<(String, Entry)>> {
    let fail = |message: String| Error::file(path, message);
    let size = file.metadata().map_err(|source| Error::io(path, source))?.len();
    let mut archive = ZipArchive::new(BufReader::new(file))
        .map_err(|error| fail(format!("is not a complete npz file: {error}")))?;
    let mut tensors = Vec::with_capacity(archive.len().min(1 << 12));
    for index in 0..archive.len() {
        let unreadable = |error| fail(format!("file {index} of the archive cannot be read: {error}"));
        let mut file = archive.by_index_raw(index).map_err(unreadable)?;
        let name = file.name().map_err(unreadable)?.into_owned();
        let name = name.strip_suffix(".npy").map_or_else(|| name.clone(), str::to_owned);
        let fail = |message: String| fail(format!("tensor {name} {message}"));
        if file.compression() != CompressionMethod::Stored || file.encrypted() {
            return Err(fail("is compressed; write the file with numpy.savez".to_owned()));
        }
        let header = Header::read(&mut file).map_err(&fail)?;
        let start = file.data_start().and_then(|start| start.checked_add(header.length as u64));
        let end = start.and_then(|start| start.checked_add(header.bytes as u64));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(fail("has no offset in the file".to_owned()));
        };
        let claimed = (header.length as u64).saturating_add(header.bytes as u64);
        if claimed != file.size() || end > size {
            let (present, shape) = (file.size().saturating_sub(header.length as u64), &header.shape);
            let message = format!(
                "has {present} bytes, but its shape {shape:?} needs {}; is the file complete?",
                header.bytes
            );
            return Err(fail(message));
        }
        tensors.push((name.clone(), Entry::of(header.dtype, header.shape, start as usize..end as usize)));
    }
    Ok(tensors)
}

/// The header of an npy file.
struct Header {
    /// The bytes before the numbers.
    length: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// The bytes of the numbers.
    bytes: usize,
}

impl Header {
    fn read(file: &mut impl Read) -> Result<Self, String> {
        let mut take = |count: usize| -> Result<Vec<u8>, String> {
            let mut bytes = vec![0; count];
            file.read_exact(&mut bytes).map_err(|error| format!("is no npy file: {error}"))?;
            Ok(bytes)
        };
        let start = take(8)?;
        if !start.starts_with(MAGIC) {
            return Err("is no npy file".to_owned());
        }
        // The length has two bytes in version 1, and four in later ones.
        let width = if start[6] == 1 { 2 } else { 4 };
        let mut length = [0; 4];
        length[..width].copy_from_slice(&take(width)?);
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_HEADER_BYTES {
            return Err(format!("has a header of {length} bytes; at most {MAX_HEADER_BYTES} are supported"));
        }
        let text = String::from_utf8_lossy(&take(length)?).into_owned();
        let missing = |key: &str| format!("has no {key} in its header");
        if value(&text, "fortran_order").is_some_and(|value| value.starts_with("True")) {
            return Err("is stored column by column, which is not supported".to_owned());
        }
        let (dtype, shape) = (
            dtype(value(&text, "descr").ok_or_else(|| missing("descr"))?)?,
            shape(value(&text, "shape").ok_or_else(|| missing("shape"))?)?,
        );
        let count = shape.iter().try_fold(1usize, |product, side| product.checked_mul(*side));
        let bytes = count.and_then(|count| count.checked_mul(dtype.bitsize() / 8));
        let bytes = bytes.ok_or_else(|| format!("has the shape {shape:?}, which is too large"))?;
        Ok(Self { length: 8 + width + length, dtype, shape, bytes })
    }
}

/// Returns the text after a key of a Python dictionary.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(&format!("'{key}'"))?;
    Some(after.trim_start().strip_prefix(':')?.trim_start())
}

fn dtype(text: &str) -> Result<Dtype, String> {
    let name = text.strip_prefix('\'').and_then(|text| text.split_once('\'')).map_or("", |(name, _)| name);
    Ok(match name.trim_start_matches(['<', '|']) {
        "f4" => Dtype::F32,
        "f2" => Dtype::F16,
        // NumPy lacks the type, so MLX writes two bytes without a type.
        "V2" => Dtype::BF16,
        "u4" => Dtype::U32,
        "u1" => Dtype::U8,
        "f8" => Dtype::F64,
        "i4" => Dtype::I32,
        "i8" => Dtype::I64,
        "b1" => Dtype::BOOL,
        _ => return Err(format!("has the type {name:?}, which is not supported")),
    })
}

/// Reads a Python tuple of numbers.
fn shape(text: &str) -> Result<Vec<usize>, String> {
    let invalid = || "has an invalid shape".to_owned();
    let (inner, _) = text.strip_prefix('(').and_then(|text| text.split_once(')')).ok_or_else(invalid)?;
    let sides = inner.split(',').map(str::trim).filter(|side| !side.is_empty());
    sides.map(|side| side.parse().map_err(|_| invalid())).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    /// Returns an npy file with this header.
    fn npy(header: &str, numbers: &[u8]) -> Vec<u8> {
        let length = (header.len() as u16).to_le_bytes();
        [MAGIC.as_slice(), &[1, 0], &length, header.as_bytes(), numbers].concat()
    }

    fn archive(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut writer = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, bytes) in files {
            let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
            writer.start_file(*name, options).expect("a name");
            writer.write_all(bytes).expect("memory");
        }
        writer.finish().expect("an archive").into_inner()
    }

    fn tensors(bytes: &[u8]) -> Result<Vec<(String, Entry)>> {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(bytes).expect("it is written");
        read(file.path(), file.as_file())
    }

    const WORDS: &str = "{'descr': '<u4', 'fortran_order': False, 'shape': (1, 2), }";

    #[test]
    fn tensors_have_the_offsets_of_their_numbers() {
        let one = "{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }";
        let bytes = archive(&[("a.b.npy", npy(one, &[1, 2, 3, 4, 5, 6])), ("c.npy", npy(WORDS, &[9; 8]))]);
        let found = tensors(&bytes).expect("they are valid");
        let [(first, half), (second, words)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((first.as_str(), half.dtype, &*half.shape), ("a.b", Dtype::F16, &[3][..]));
        assert_eq!((second.as_str(), words.dtype, &*words.shape), ("c", Dtype::U32, &[1, 2][..]));
        let at = |entry: &Entry| &bytes[entry.start as usize..][..entry.length];
        assert_eq!((at(half), at(words)), (&[1, 2, 3, 4, 5, 6][..], &[9; 8][..]));
    }

    #[test]
    fn unusable_files_are_refused_with_the_reason() {
        let refused = |bytes: &[u8], why: &str| {
            let message = tensors(bytes).expect_err(why).to_string();
            assert!(message.contains(why), "{message}");
        };
        let with = |header: &str, numbers: &[u8]| archive(&[("a.npy", npy(header, numbers))]);
        let whole = with(WORDS, &[9; 8]);
        refused(&whole[..whole.len() - 30], "is not a complete npz file");
        refused(b"text", "is not a complete npz file");
        refused(&with(WORDS, &[9; 7]), "has 7 bytes, but its shape [1, 2] needs 8");
        refused(&with(&WORDS.replace("False", "True"), &[9; 8]), "column by column");
        refused(&with(&WORDS.replace("<u4", "<c8"), &[9; 8]), "the type \"<c8\"");
        refused(&with(&WORDS.replace("1, 2", "99999999999, 99999999999"), &[]), "too large");
        refused(&with(&WORDS.replace("1, 2", "1, x"), &[9; 8]), "an invalid shape");
        refused(&with("{}", &[]), "has no descr");
        refused(&archive(&[("a.npy", b"something else".to_vec())]), "tensor a is no npy file");
        let mut packed = whole;
        let directory = packed.windows(4).position(|at| at == b"PK\x01\x02").expect("it has one");
        // The number of deflate.
        packed[directory + 10] = 8;
        refused(&packed, "is compressed");
    }
}
