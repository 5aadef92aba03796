//! The file operations of saved prefixes. Tests replace them to count and delay them. Invariant: only the reader and writer threads
//! call them.

use std::io;
use std::path::Path;

use mlx_files::write_privately;

use crate::error::Result;

/// A disk. It may be slow or unreachable, so a call may block forever.
pub(crate) trait Storage: Send + Sync {
    /// Returns true if the file exists.
    fn exists(&self, path: &Path) -> bool;

    /// Reads a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Writes a file atomically, and creates its folder if needed.
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
        Ok(write_privately(path, bytes)?)
    }
}
