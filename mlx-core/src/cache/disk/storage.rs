//! The file operations behind saved prefixes, so that tests can count them and make them slow. Invariant: only the reader's and the
//! writer's thread call them.

use std::io;
use std::path::Path;

use crate::atomic_write::write_privately;
use crate::error::Result;

/// A disk, which may be slow or away: each call may wait for ever.
pub(crate) trait Storage: Send + Sync {
    /// True if there is a file.
    fn exists(&self, path: &Path) -> bool;

    /// The bytes of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Writes a file completely or not at all, and creates its folder if needed.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()>;
}

/// The file system.
pub(crate) struct LocalDisk;

impl Storage for LocalDisk {
    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        write_privately(path, bytes)
    }
}
