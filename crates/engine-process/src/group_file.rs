//! The file that lists the addresses of a group of ranks in MLX. Its path must be in the environment of a rank's process from the start; the
//! process writes the file.

use std::ffi::OsString;
use std::io;

use mlx_core::distributed::{ADDRESSES_VARIABLE, RANK_VARIABLE};
use tempfile::NamedTempFile;

/// The file of one process, deleted on drop.
pub struct GroupFile(NamedTempFile);

impl GroupFile {
    /// Creates an empty file that only this user can read.
    pub fn new() -> io::Result<Self> {
        NamedTempFile::new().map(Self)
    }

    /// Returns the environment variables of the process with this rank.
    pub fn environment(&self, rank: usize) -> [(OsString, OsString); 2] {
        let path = self.0.path().as_os_str().to_owned();
        [(RANK_VARIABLE.into(), rank.to_string().into()), (ADDRESSES_VARIABLE.into(), path)]
    }
}
