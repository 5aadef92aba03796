//! The header of a safetensors file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};

use super::entry::Entry;
use crate::error::{Error, Result};

/// The maximum header length (the format's own limit is 100 MB).
const MAX_HEADER_BYTES: u64 = 100 << 20;

/// Reads a header. Returns its length including the prefix, and the tensors with `start` relative to the data.
pub(super) fn read(path: &Path, file: &mut File) -> Result<(u64, Vec<(String, Entry)>)> {
    let fail = |message: String| Error::file(path, message);
    let size = file.metadata().map_err(|source| Error::io(path, source))?.len();
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).map_err(|_| fail(format!("{size} bytes is too short for safetensors")))?;
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER_BYTES || length + 8 > size {
        return Err(fail(format!(
            "the header should have {length} bytes, but the file has {size}; is it complete?"
        )));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(|source| Error::io(path, source))?;
    // Deserialization checks that the tensors are contiguous and that shapes match their byte ranges.
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| fail(format!("bad header: {error}")))?;
    let (claimed, present) = (metadata.data_len() as u64, size - 8 - length);
    if claimed != present {
        return Err(fail(format!(
            "has {present} bytes of tensors, but its header says {claimed}; is it complete?"
        )));
    }
    let entry = |info: &TensorInfo| {
        Entry::of(info.dtype, info.shape.clone(), info.data_offsets.0..info.data_offsets.1)
    };
    let entries = metadata.tensors().into_iter().map(|(name, info)| (name, entry(info))).collect();
    Ok((8 + length, entries))
}
