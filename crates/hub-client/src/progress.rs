//! What a download reports while it runs.

/// The progress of all files of a model.
pub trait Progress: Sync {
    /// Begins a file.
    fn file<'a>(&'a self, name: &'a str) -> Box<dyn FileProgress + 'a>;
}

/// The progress of one file.
pub trait FileProgress {
    /// So many of its bytes were found on the disk and read.
    fn checked(&self, bytes: u64);

    /// So many of its bytes are there: those that were there before, and those that have arrived.
    fn arrived(&self, bytes: u64);

    /// So many of its bytes are there, none of which has arrived just now.
    fn counted(&self, bytes: u64);

    /// An event that a person may want to know.
    fn note(&self, line: &str);

    /// All of its bytes are there and intact.
    fn done(&self, size: u64);
}
