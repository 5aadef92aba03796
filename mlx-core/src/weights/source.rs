//! The location of tensor data, and reading it from the files directly into an array's buffer with several threads.

use std::fmt::Debug;
use std::fs::File;
use std::mem;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use xxhash_rust::xxh3::xxh3_64;

use super::cut::Slice;
use crate::error::{Error, Result};

/// Bytes that a thread reads at a time. Each block has its own hash.
const BLOCK: usize = 4 << 20;

/// The maximum number of reader threads; enough to keep a disk busy.
const READERS: usize = 4;

/// The hash of a block.
pub(crate) type BlockHash = [u8; 8];

fn hash_of(block: &[u8]) -> BlockHash {
    xxh3_64(block).to_le_bytes()
}

/// Bytes that can be read at any offset, from several threads at once: a file, or a tensor that is computed from one.
pub(super) trait ReadAt: Debug + Send + Sync {
    /// Fills `bytes` from `place`.
    fn read_at(&self, place: u64, bytes: &mut [u8]) -> Result<()>;

    /// The file to name in errors.
    fn path(&self) -> &Path;

    /// The bytes of which a read should be a multiple.
    fn unit(&self) -> usize {
        1
    }
}

/// A file of tensors.
#[derive(Debug)]
pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
}

impl TensorFile {
    pub(super) fn new(path: PathBuf, file: File) -> Self {
        Self { path, file }
    }
}

impl ReadAt for TensorFile {
    fn read_at(&self, place: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, place).map_err(|source| Error::io(self.path.as_path(), source))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A range of bytes in a file.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) file: Arc<dyn ReadAt>,
    /// Offset of the first byte.
    pub(super) start: u64,
    /// Length in bytes.
    pub(super) length: usize,
    /// The selected bytes, if they are not contiguous.
    pub(super) cut: Option<Slice>,
}

impl Source {
    /// Reads some bytes. The tensor must not be cut.
    pub(super) fn read_at(&self, place: usize, bytes: &mut [u8]) -> Result<()> {
        self.file.read_at(self.start + place as u64, bytes)
    }

    fn read(&self, bytes: &mut [u8]) -> Result<()> {
        let read = |place: usize, target: &mut [u8]| self.file.read_at(self.start + place as u64, target);
        match &self.cut {
            None => read(0, bytes),
            Some(cut) => cut.read(bytes, read),
        }
    }

    /// Splits it into `count` equal parts; `None` if it cannot be divided evenly.
    pub(super) fn parts(self, count: usize) -> Option<Vec<Self>> {
        let length = self.length.checked_div(count)?;
        let in_file = self.cut.as_ref().map_or(Some(length), |cut| cut.in_file(length))? as u64;
        let part = |part: u64| Self {
            file: Arc::clone(&self.file),
            start: self.start + part * in_file,
            length,
            cut: self.cut.clone(),
        };
        Some((0..count as u64).map(part).collect())
    }

    /// Splits it into the blocks that are read at a time.
    fn blocks(self) -> Vec<Self> {
        if self.cut.is_some() {
            return vec![self];
        }
        let unit = self.file.unit().max(1);
        let size = (BLOCK / unit).max(1) * unit;
        let block = |start: usize| Self {
            file: Arc::clone(&self.file),
            start: self.start + start as u64,
            length: size.min(self.length - start),
            cut: None,
        };
        (0..self.length).step_by(size).map(block).collect()
    }
}

/// Reads sources one after the other into `bytes`. Returns the hashes of their blocks in this order.
pub(super) fn read(sources: Vec<Source>, bytes: &mut [u8]) -> Result<Vec<BlockHash>> {
    let blocks: Vec<Source> = sources.into_iter().flat_map(Source::blocks).collect();
    let mut hashes = vec![BlockHash::default(); blocks.len()];
    let threads = if blocks.len() < 2 { 1 } else { thread::available_parallelism().map_or(1, usize::from) };
    let threads = threads.min(READERS).min(blocks.len());
    let other_size =
        || Error::Array("the size of the tensors differs from that of the array they are read into".into());
    let mut rest = bytes;
    let mut targets = Vec::with_capacity(blocks.len());
    for (block, hash) in blocks.iter().zip(&mut hashes) {
        let (target, behind) =
            mem::take(&mut rest).split_at_mut_checked(block.length).ok_or_else(other_size)?;
        targets.push((block, target, hash));
        rest = behind;
    }
    if !rest.is_empty() {
        return Err(other_size());
    }
    let targets = Mutex::new(targets.into_iter());
    let read = || -> Result<()> {
        loop {
            let next = targets.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((block, target, hash)) = next else { return Ok(()) };
            block.read(target)?;
            *hash = hash_of(target);
        }
    };
    thread::scope(|scope| {
        // If a thread cannot be spawned, the others read its blocks.
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, read).ok();
        let others: Vec<_> = (1..threads).filter_map(spawn).collect();
        let own = read();
        let ended = |_| Err(Error::Array("a thread that reads tensors panicked".into()));
        let joined = others.into_iter().map(|other| other.join().unwrap_or_else(ended));
        [own].into_iter().chain(joined).collect::<Result<()>>()
    })?;
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::cut::AxisSelection;

    /// Creates a file with these bytes.
    fn file(bytes: &[u8]) -> (tempfile::TempDir, Arc<dyn ReadAt>) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("weights.safetensors");
        std::fs::write(&path, bytes).expect("it is written");
        let file = File::open(&path).expect("it is there");
        (folder, Arc::new(TensorFile::new(path, file)))
    }

    fn source(file: &Arc<dyn ReadAt>, start: u64, length: usize) -> Source {
        Source { file: Arc::clone(file), start, length, cut: None }
    }

    #[test]
    fn blocks_of_several_sources_lie_one_behind_the_other() {
        let bytes: Vec<u8> = (0..2 * BLOCK as u32 + 9).map(|number| (number % 251) as u8).collect();
        let (_folder, file) = file(&bytes);
        let sources = || vec![source(&file, 5, 2 * BLOCK + 1), source(&file, 0, 7), source(&file, 3, BLOCK)];
        let expected = [&bytes[5..2 * BLOCK + 6], &bytes[..7], &bytes[3..BLOCK + 3]].concat();
        let mut found = vec![0; expected.len()];
        let hashes = read(sources(), &mut found).expect("it is there");
        assert!(found == expected);
        let [first, second] = [&expected[..BLOCK], &expected[BLOCK..2 * BLOCK]].map(hash_of);
        let last = [&bytes[2 * BLOCK + 5..2 * BLOCK + 6], &bytes[..7], &bytes[3..BLOCK + 3]].map(hash_of);
        assert_eq!(hashes, [first, second, last[0], last[1], last[2]]);
        // The buffer is one byte too short.
        let short = found.len() - 1;
        assert!(read(sources(), &mut found[..short]).is_err());
        found.push(0);
        assert!(read(sources(), &mut found).is_err(), "a byte is not written");
    }

    #[test]
    fn a_file_that_became_shorter_is_named() {
        let (_folder, file) = file(&[1; 100]);
        let sources = vec![source(&file, 0, 50), source(&file, 90, 11)];
        let error = read(sources, &mut [0; 61]).expect_err("a byte is missing").to_string();
        assert!(error.contains("weights.safetensors"), "{error}");
    }

    #[test]
    fn a_cut_source_has_equal_parts_too() {
        // Two matrices of four rows of three bytes; rows 1 and 2 are selected.
        let bytes: Vec<u8> = (0..24).collect();
        let (_folder, file) = file(&bytes);
        let places = AxisSelection { of: 4, ranges: vec![1..3; 1] };
        let (shape, cut) = Slice::at(&[2, 4, 3], 24, 2, &places).expect("it has four rows");
        assert_eq!(shape, [2, 2, 3]);
        let cut = Source { cut: Some(cut), ..source(&file, 0, 12) };
        let mut parts = cut.parts(2).expect("each has whole rows");
        parts.reverse();
        let mut found = [0; 12];
        read(parts, &mut found).expect("it is there");
        assert_eq!(found, [15, 16, 17, 18, 19, 20, 3, 4, 5, 6, 7, 8]);
        let (_, cut) = Slice::at(&[2, 4, 3], 24, 3, &AxisSelection { of: 2, ranges: vec![1..2; 1] })
            .expect("two matrices");
        let one = Source { cut: Some(cut), ..source(&file, 0, 12) };
        assert!(one.parts(2).is_none(), "its only run has one matrix");
    }
}
