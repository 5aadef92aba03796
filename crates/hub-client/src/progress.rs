//! Progress reports of a download.

/// The progress of all files of a model.
pub trait Progress: Sync {
    /// Begins a file.
    fn file<'a>(&'a self, name: &'a str) -> Box<dyn FileProgress + 'a>;
}

/// The progress of one file.
pub trait FileProgress {
    /// Reports that this many bytes of an earlier download were read from disk and checked.
    fn verified(&self, bytes: u64);

    /// Reports that this many bytes are on disk, including earlier downloads.
    fn received(&self, bytes: u64);

    /// Like `received`, but without new bytes, so that they do not count towards the speed.
    fn resumed(&self, bytes: u64);

    /// Reports an event for the user.
    fn note(&self, line: &str);

    /// Returns true to end the download soon. A later one continues it.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Reports that the file is complete and intact.
    fn done(&self, size: u64);
}
