//! Where the bytes of tensors are, and how an array gets them: from the files straight to where it has its numbers, by several threads.

use std::fs::File;
use std::mem;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use xxhash_rust::xxh3::xxh3_64;

use super::cut::Cut;
use crate::error::{Error, Result};

/// Bytes that a thread reads at a time, and that have a hash of their own.
const BLOCK: usize = 4 << 20;

/// The most threads that read: so many keep a disk busy.
const READERS: usize = 4;

/// A file of tensors.
#[derive(Debug)]
pub(super) struct TensorFile {
    pub(super) path: PathBuf,
    pub(super) file: File,
}

impl TensorFile {
    pub(super) fn read_at(&self, place: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, place).map_err(|source| Error::io(self.path.as_path(), source))
    }
}

/// Bytes of a file.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) file: Arc<TensorFile>,
    /// Where they begin.
    pub(super) start: u64,
    /// How many they are.
    pub(super) length: usize,
    /// Which bytes they are, if they do not follow one another.
    pub(super) cut: Option<Cut>,
}

impl Source {
    fn read(&self, bytes: &mut [u8]) -> Result<()> {
        let read = |place: usize, target: &mut [u8]| self.file.read_at(self.start + place as u64, target);
        match &self.cut {
            None => read(0, bytes),
            Some(cut) => cut.read(bytes, read),
        }
    }

    /// Equal parts of it, as many as divide it.
    pub(super) fn parts(self, count: usize) -> impl Iterator<Item = Self> {
        let length = self.length / count;
        let in_file = self.cut.as_ref().map_or(length, |cut| cut.in_file(length)) as u64;
        (0..count as u64).map(move |part| Self {
            file: Arc::clone(&self.file),
            start: self.start + part * in_file,
            length,
            cut: self.cut.clone(),
        })
    }

    /// What is read at a time.
    fn blocks(self) -> Vec<Self> {
        if self.cut.is_some() {
            return vec![self];
        }
        let block = |start: usize| Self {
            file: Arc::clone(&self.file),
            start: self.start + start as u64,
            length: BLOCK.min(self.length - start),
            cut: None,
        };
        (0..self.length).step_by(BLOCK).map(block).collect()
    }
}

/// Reads sources one behind the other. Returns the hashes of their blocks in this order.
pub(super) fn read(sources: Vec<Source>, bytes: &mut [u8]) -> Result<Vec<u64>> {
    let blocks: Vec<Source> = sources.into_iter().flat_map(Source::blocks).collect();
    let mut hashes = vec![0; blocks.len()];
    let threads = thread::available_parallelism().map_or(1, usize::from).min(READERS).min(blocks.len());
    let mut rest = bytes;
    let mut targets = Vec::with_capacity(blocks.len());
    for (block, hash) in blocks.iter().zip(&mut hashes) {
        let (target, behind) = mem::take(&mut rest).split_at_mut_checked(block.length).ok_or_else(|| {
            Error::Array("tensors have more bytes than the array that they are read into".into())
        })?;
        targets.push((block, target, hash));
        rest = behind;
    }
    let targets = Mutex::new(targets.into_iter());
    let read = || -> Result<()> {
        loop {
            let next = targets.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((block, target, hash)) = next else { return Ok(()) };
            block.read(target)?;
            *hash = xxh3_64(target);
        }
    };
    thread::scope(|scope| {
        // What cannot have a thread of its own is read by the others.
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, read).ok();
        let others: Vec<_> = (1..threads).filter_map(spawn).collect();
        let own = read();
        let ended = |_| Err(Error::Array("a thread that reads tensors ended early".into()));
        let joined = others.into_iter().map(|other| other.join().unwrap_or_else(ended));
        [own].into_iter().chain(joined).collect::<Result<()>>()
    })?;
    Ok(hashes)
}
