//! Writes a zip archive. Equal entries give equal bytes: all have the same time and no owner.

use std::io::Write;

use anyhow::{Context, Result};
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

/// A file of the archive.
pub(super) struct Entry {
    /// The path with slashes, relative to the root of the archive.
    pub(super) path: String,
    pub(super) content: Vec<u8>,
    pub(super) is_program: bool,
}

/// The system of the file modes: Unix.
const UNIX: u16 = 3;
/// The version of the format, 2.0, which has deflated entries.
const VERSION: u16 = 20;
const DEFLATED: u16 = 8;
/// 1 January 1980, the first day of the format, at midnight.
const DATE: u16 = 1 << 5 | 1;
const TIME: u16 = 0;

/// Returns the archive of these entries, in this order.
pub(super) fn pack(entries: &[Entry]) -> Result<Vec<u8>> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let mut deflated = DeflateEncoder::new(Vec::new(), Compression::best());
        deflated.write_all(&entry.content)?;
        let deflated = deflated.finish()?;
        let mut crc = Crc::new();
        crc.update(&entry.content);
        let mut fields = Vec::new();
        for field in [VERSION, 0, DEFLATED, TIME, DATE] {
            fields.extend(field.to_le_bytes());
        }
        for field in [crc.sum(), size(deflated.len())?, size(entry.content.len())?] {
            fields.extend(field.to_le_bytes());
        }
        let name_length = u16::try_from(entry.path.len()).context("a path in the zip file is too long")?;
        fields.extend(name_length.to_le_bytes());
        fields.extend([0; 2]);

        directory.extend(b"PK\x01\x02");
        directory.extend((UNIX << 8 | VERSION).to_le_bytes());
        directory.extend(&fields);
        // No comment, the first disk, and no internal attributes.
        directory.extend([0; 6]);
        let mode: u32 = if entry.is_program { 0o100_755 } else { 0o100_644 };
        directory.extend((mode << 16).to_le_bytes());
        directory.extend(size(archive.len())?.to_le_bytes());
        directory.extend(entry.path.as_bytes());

        archive.extend(b"PK\x03\x04");
        archive.extend(&fields);
        archive.extend(entry.path.as_bytes());
        archive.extend(deflated);
    }
    let count = u16::try_from(entries.len()).context("the zip file has too many files")?;
    let (length, start) = (size(directory.len())?, size(archive.len())?);
    archive.extend(directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    archive.extend([length.to_le_bytes(), start.to_le_bytes()].concat());
    archive.extend([0; 2]);
    Ok(archive)
}

fn size(bytes: usize) -> Result<u32> {
    u32::try_from(bytes).context("the zip file is larger than 4 GiB")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::DeflateDecoder;

    use super::*;

    #[test]
    fn entries_and_directory_are_where_the_format_expects_them() {
        let entry = |path: &str, content: &str, is_program| Entry {
            path: path.to_owned(),
            content: content.as_bytes().to_vec(),
            is_program,
        };
        let text = "more ".repeat(99);
        let archive =
            pack(&[entry("a", "123456789", false), entry("b/c", &text, true)]).expect("it is small");
        let word = |at: usize| u32::from_le_bytes(archive[at..at + 4].try_into().expect("four bytes"));
        // The check value of CRC-32 in its definition.
        assert_eq!((word(0), word(14), word(22)), (0x0403_4b50, 0xcbf4_3926, 9));
        let end = archive.len() - 22;
        assert_eq!((word(end), word(end + 8)), (0x0605_4b50, 0x0002_0002));
        let (length, directory) = (word(end + 12) as usize, word(end + 16) as usize);
        assert_eq!(directory + length, end);
        let second = directory + 46 + "a".len();
        assert_eq!((word(directory), word(second)), (0x0201_4b50, 0x0201_4b50));
        assert_eq!([word(directory + 38) >> 16, word(second + 38) >> 16], [0o100_644, 0o100_755]);
        let start = word(second + 42) as usize;
        assert_eq!(&archive[start + 30..start + 33], b"b/c");
        let mut content = String::new();
        let deflated = &archive[start + 33..start + 33 + word(start + 18) as usize];
        DeflateDecoder::new(deflated).read_to_string(&mut content).expect("it is deflated");
        assert_eq!(content, text);
    }
}
