//! The structure of JPEG files. The decoder fills the missing part of a truncated file with gray; decoders of other
//! formats, and Pillow, reject such files.

/// Returns true if the file contains its end marker. Segments are skipped, since a thumbnail in a segment has its own
/// end marker.
pub(crate) fn is_complete(file: &[u8]) -> bool {
    let mut rest = file;
    while let Some(start) = rest.windows(2).position(|pair| pair[0] == 0xff && is_marker(pair[1])) {
        if rest[start + 1] == END {
            return true;
        }
        rest = &rest[start + 2..];
        let length = rest.first_chunk().map_or(rest.len(), |bytes| usize::from(u16::from_be_bytes(*bytes)));
        rest = rest.get(length..).unwrap_or_default();
    }
    false
}

const END: u8 = 0xd9;

/// Returns true for the second byte of a marker with a segment, and of the end marker. Between scans there are stuffed
/// bytes, fill bytes and markers without a segment.
fn is_marker(byte: u8) -> bool {
    !matches!(byte, 0x00 | 0x01 | 0xd0..=0xd8 | 0xff)
}
