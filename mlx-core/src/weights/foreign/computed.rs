//! A matrix whose rows are computed while they are read, a band of rows at a time.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::Result;
use crate::weights::source::ReadAt;

/// Bytes of a band. Several small reads of parts of one band compute it once.
const BAND: usize = 4 << 20;

/// The number of rows of which large reads are a multiple. Some formats pack the codes of eight rows in a word.
const UNIT: usize = 8;

/// Computes rows of a matrix.
pub(super) trait Rows: Debug + Send + Sync {
    /// Fills `bytes` with whole rows, beginning with row `first`.
    fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()>;
}

/// A matrix of computed rows.
#[derive(Debug)]
pub(super) struct Computed<R> {
    rows: R,
    count: usize,
    /// Bytes of a row.
    width: usize,
    /// The number of rows in a band.
    band: usize,
    /// The file to name in errors.
    path: PathBuf,
    /// The first row of the last band that was read in parts, and its bytes.
    last: Mutex<(usize, Vec<u8>)>,
}

impl<R: Rows> Computed<R> {
    /// Creates a matrix of `count` rows of `width` bytes.
    pub(super) fn new(rows: R, count: usize, width: usize, path: PathBuf) -> Self {
        let band = (BAND / width.max(1)).clamp(1, count.max(1));
        Self { rows, count, width, band, path, last: Mutex::new((0, Vec::new())) }
    }

    /// Copies bytes from offset `inside` of the band with row `row`. Returns their number.
    fn copy_of_band(&self, row: usize, inside: usize, bytes: &mut [u8]) -> Result<usize> {
        if row >= self.count {
            return Ok(0);
        }
        let first = row / self.band * self.band;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != first || last.1.is_empty() {
            let mut band = std::mem::take(&mut last.1);
            band.resize(self.band.min(self.count - first) * self.width, 0);
            self.rows.fill(first, &mut band)?;
            *last = (first, band);
        }
        let found = last.1.get((row - first) * self.width + inside..).unwrap_or_default();
        let count = found.len().min(bytes.len());
        bytes[..count].copy_from_slice(&found[..count]);
        if count == found.len() || row + 1 == self.count {
            // A reader that goes through the matrix does not come back.
            last.1 = Vec::new();
        }
        Ok(count)
    }

    /// Returns true if `rows` rows from row `first` are computed without a band, which would stay in memory: if they are as many as some formats
    /// pack together, or the last ones.
    fn is_direct(&self, first: usize, rows: usize) -> bool {
        rows > 0 && (rows >= UNIT.min(self.band.div_ceil(2)) || first + rows == self.count)
    }
}

impl<R: Rows> ReadAt for Computed<R> {
    fn read_at(&self, place: u64, bytes: &mut [u8]) -> Result<()> {
        let (mut place, mut rest) = (place as usize, bytes);
        while !rest.is_empty() {
            let (row, inside) = (place / self.width, place % self.width);
            let whole = if inside == 0 { rest.len() / self.width } else { 0 };
            let count = if self.is_direct(row, whole) {
                let count = whole * self.width;
                self.rows.fill(row, &mut rest[..count])?;
                count
            } else {
                self.copy_of_band(row, inside, rest)?
            };
            if count == 0 {
                let missing = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                return Err(crate::error::Error::io(&self.path, missing));
            }
            place += count;
            rest = &mut rest[count..];
        }
        Ok(())
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn unit(&self) -> usize {
        UNIT * self.width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte `n` of the matrix is `n % 251`.
    #[derive(Debug)]
    struct Counted(usize);

    impl Rows for Counted {
        fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
            assert!(bytes.len().is_multiple_of(self.0), "only whole rows are computed");
            bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = ((first * self.0 + at) % 251) as u8);
            Ok(())
        }
    }

    #[test]
    fn any_range_of_a_computed_matrix_can_be_read() {
        for (count, width) in [(5, 7), (3000, 1000), (3, 2 << 20), (9000, 1000)] {
            let matrix = Computed::new(Counted(width), count, width, PathBuf::new());
            let size = count * width;
            for (start, end) in
                [(0, size), (0, 1), (size - 1, size), (width - 1, width + 1), (size / 3, size / 2)]
            {
                let mut found = vec![0; end - start];
                matrix.read_at(start as u64, &mut found).expect("it is inside");
                assert!(
                    found.iter().enumerate().all(|(at, byte)| usize::from(*byte) == (start + at) % 251),
                    "{start}"
                );
            }
            assert!(matrix.read_at(size as u64 - 1, &mut [0; 2]).is_err());
        }
    }
}
