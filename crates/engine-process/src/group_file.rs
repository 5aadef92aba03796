//! The file that describes a group of ranks to MLX. Its path must be in the environment of a rank's process from the start; the process
//! writes the file.

use std::ffi::OsString;
use std::io;

use mlx_core::distributed::GroupStart;
use tempfile::NamedTempFile;

/// The file of one process, deleted on drop.
pub struct GroupFile(NamedTempFile);

impl GroupFile {
    /// Creates an empty file that only this user can read.
    pub fn new() -> io::Result<Self> {
        NamedTempFile::new().map(Self)
    }

    /// Returns the environment variables of the process with this rank.
    pub fn environment(&self, start: &GroupStart, rank: usize) -> Vec<(OsString, OsString)> {
        start.environment(rank, self.0.path())
    }
}
