//! The search for blocks and checkpoints of a text that are not on disk. The writer thread hashes the text once and checks each file once.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use super::file::{BLOCK, BlockPosition, Key};
use super::folder;
use super::storage::Storage;

/// A request to find the missing files of a text.
pub(super) struct MissingSearch {
    pub(super) folder: PathBuf,
    /// The key of its tier.
    pub(super) root: Key,
    pub(super) tokens: Arc<[u32]>,
    /// The lengths of its checkpoints.
    pub(super) states: Vec<usize>,
}

/// A file of a text. The number is the length of the text up to the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// The block that ends at this length.
    Block(usize),
    /// The checkpoint at this length.
    State(usize),
}

impl Part {
    fn end(self) -> usize {
        match self {
            Self::Block(end) | Self::State(end) => end,
        }
    }
}

/// The files of a text that are still to be written.
pub(crate) struct Missing {
    root: Key,
    tokens: Arc<[u32]>,
    /// The key of each block.
    keys: Vec<Key>,
    /// In order of length. A block comes before the checkpoint at its end.
    parts: VecDeque<Part>,
}

impl MissingSearch {
    /// Looks for the files. Waits for the disk.
    pub(super) fn run(self, storage: &dyn Storage) -> Missing {
        let Self { folder, root, tokens, states } = self;
        let keys = root.chain(&tokens);
        let block = |key: Key| folder::path_of(&folder, root, key);
        let state = |key: Key| folder::state_path_of(&folder, root, key);
        let ends = |key: &(usize, &Key)| (key.0 + 1) * BLOCK;
        let blocks = keys.iter().enumerate().filter(|it| !storage.exists(&block(*it.1)));
        let blocks = blocks.map(|it| Part::Block(ends(&it)));
        let marked = keys.iter().enumerate().filter(|it| states.contains(&ends(it)));
        let marked = marked.filter(|it| !storage.exists(&state(*it.1))).map(|it| Part::State(ends(&it)));
        let mut parts: Vec<Part> = blocks.chain(marked).collect();
        parts.sort_by_key(|part| (part.end(), *part));
        Missing { root, tokens, keys, parts: parts.into() }
    }
}

impl Missing {
    /// Removes and returns the next file to write.
    pub(crate) fn take_next(&mut self) -> Option<Part> {
        self.parts.pop_front()
    }

    /// Returns true if no file remains.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The key of the tier.
    pub(super) fn root(&self) -> Key {
        self.root
    }

    /// Returns the key and the position of the block that ends at `end`.
    pub(super) fn place(&self, end: usize) -> (Key, BlockPosition) {
        let (block, start) = (end / BLOCK - 1, end - BLOCK);
        let parent = block.checked_sub(1).map_or(self.root, |before| self.keys[before]);
        (self.keys[block], BlockPosition { parent, start, tokens: self.tokens[start..end].to_vec() })
    }
}
