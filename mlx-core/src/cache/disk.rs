//! Prefixes on disk: files with blocks of keys and values. A hash of the model and of all tokens up to its end names each file, so
//! equal prefixes share a file. Invariant: no arrays; blocks of other models and damaged blocks are never returned.

mod block;
mod file;
mod folder;
mod quota;
mod snapshot;
mod storage;
mod survey;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use mlx_files::{create_private_folder, warn_of_readers};
use serde::{Deserialize, Serialize};

pub(crate) use block::Block;
pub(crate) use file::{BLOCK, BlockPosition, Layer};
pub(crate) use snapshot::Snapshot;
pub(crate) use survey::{Missing, Part};

#[cfg(test)]
pub(crate) use file::hashed_blocks;
use file::{Invalid, Key};
use storage::LocalDisk;
pub(crate) use storage::Storage;
use survey::MissingSearch;
use writer::{Content, Writer};

use crate::error::{Error, Result};

/// The folder and the limits of saved prefixes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskOptions {
    /// The folder. Several programs and models may share it.
    pub folder: PathBuf,
    /// The maximum size of all files in bytes. The least recently used files are removed first.
    pub max_bytes: u64,
    /// The maximum number of bytes that one program writes per hour. Prefixes beyond it are not saved.
    pub max_writes_per_hour: u64,
}

impl DiskOptions {
    /// Options for a folder of up to 16 GB, with at most 4 GB written per hour.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, max_bytes: 16_000_000_000, max_writes_per_hour: 4_000_000_000 }
    }
}

/// A set of interchangeable states: they have one owner and were computed in the same way. Each tier has separate files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tier {
    /// The client that owns the texts; `None` if all clients share them.
    pub(crate) owner: Option<u64>,
    /// The adapter that computed them, as its number among the engine's adapters, from 1; 0 for none.
    pub(crate) adapter: usize,
    /// True if the batch shapes always give the same bits, as with complete prompt chunks. False for arbitrary shapes, as with prompts
    /// and answers.
    pub(crate) exact: bool,
}

impl Tier {
    /// The names of an adapter's tiers, by their indices.
    pub(crate) const NAMES: [&str; 2] = ["Ordinary", "Exact"];

    /// The index of its fingerprint among those of all adapters.
    fn place(self) -> usize {
        Self::NAMES.len() * self.adapter + usize::from(self.exact)
    }
}

/// The saved prefixes of one model.
pub(crate) struct DiskCache {
    folder: PathBuf,
    /// The keys of the model's tiers without an owner, by [`Tier::place`].
    roots: Vec<Key>,
    storage: Arc<dyn Storage>,
    writer: Writer,
}

/// The saved blocks of a text.
pub(crate) struct Saved {
    root: Key,
    keys: Vec<Key>,
}

impl Saved {
    /// The number of positions that the blocks hold.
    pub(crate) fn length(&self) -> usize {
        self.keys.len() * BLOCK
    }
}

impl DiskCache {
    /// Opens the prefixes of a model with these fingerprints: two for each adapter, by the indices of their tiers.
    pub(crate) fn open(options: DiskOptions, fingerprints: Vec<u128>) -> Result<Self> {
        create_private_folder(&options.folder)?;
        warn_of_readers(&options.folder);
        for fingerprint in &fingerprints {
            create_private_folder(&options.folder.join(Key::root(*fingerprint).to_string()))?;
        }
        Self::open_on(options, fingerprints, Arc::new(LocalDisk))
    }

    /// Like [`open`](Self::open), but `storage` reads and writes the files.
    pub(crate) fn open_on(
        options: DiskOptions,
        fingerprints: Vec<u128>,
        storage: Arc<dyn Storage>,
    ) -> Result<Self> {
        let (folder, roots) = (options.folder.clone(), fingerprints.into_iter().map(Key::root).collect());
        let writer =
            Writer::start(options, Arc::clone(&storage)).map_err(|error| Error::io(&folder, error))?;
        Ok(Self { folder, roots, storage, writer })
    }

    /// Returns the key of a tier: that of its fingerprint, salted with its owner.
    fn root(&self, tier: Tier) -> Key {
        let root = self.roots[tier.place()];
        tier.owner.map_or(root, |owner| root.then(&[owner as u32, (owner >> 32) as u32]))
    }

    fn path(&self, root: Key, key: Key) -> PathBuf {
        folder::path_of(&self.folder, root, key)
    }

    fn state_path(&self, root: Key, key: Key) -> PathBuf {
        folder::state_path_of(&self.folder, root, key)
    }

    /// Finds the longest prefix of `tokens` that is saved in a tier. Waits for the disk.
    pub(crate) fn find(&self, tier: Tier, tokens: &[u32]) -> Saved {
        let root = self.root(tier);
        let is_saved = |key: &Key| self.storage.exists(&self.path(root, *key));
        Saved { root, keys: root.chain(tokens).into_iter().take_while(is_saved).collect() }
    }

    /// Reads the first `positions` of a prefix found for `tokens`, up to the first damaged file. Also returns the number of damaged
    /// files, which are removed. Waits for the disk.
    pub(crate) fn load(&self, saved: &Saved, tokens: &[u32], positions: usize) -> (Vec<Block>, usize) {
        let (runs, _) = tokens.as_chunks::<BLOCK>();
        let (mut blocks, mut parent) = (Vec::new(), saved.root);
        let count = positions.div_ceil(BLOCK);
        for (index, (key, run)) in saved.keys.iter().zip(runs).take(count).enumerate() {
            let path = self.path(saved.root, *key);
            let place = BlockPosition { parent, start: index * BLOCK, tokens: run.to_vec() };
            // Another process may have removed it since.
            let Ok(bytes) = self.storage.read(&path) else { return (blocks, 0) };
            match Block::read(&bytes, &place) {
                Ok(block) => blocks.push(block),
                Err(Invalid(why)) => {
                    tracing::warn!(path = %path.display(), why, "removing a saved block that is damaged or not for this text");
                    folder::remove(&path).ok();
                    return (blocks, 1);
                }
            }
            parent = *key;
        }
        self.writer.touch(saved.keys.iter().take(count).map(|key| self.path(saved.root, *key)).collect());
        (blocks, 0)
    }

    /// Returns the length of the last saved checkpoint within the first `positions` found; 0 if there is none. Waits for the disk.
    pub(crate) fn last_state(&self, saved: &Saved, positions: usize) -> usize {
        let has = |key: &Key| self.storage.exists(&self.state_path(saved.root, *key));
        let keys = &saved.keys[..saved.keys.len().min(positions / BLOCK)];
        keys.iter().rposition(has).map_or(0, |block| (block + 1) * BLOCK)
    }

    /// Reads the checkpoint at length `positions` of a prefix found for `tokens`. `Err` holds the number of damaged files, which are
    /// removed. Waits for the disk.
    pub(crate) fn load_state(
        &self,
        saved: &Saved,
        tokens: &[u32],
        positions: usize,
    ) -> Result<Snapshot, usize> {
        let blocks = positions / BLOCK;
        let key = *saved.keys.get(blocks.wrapping_sub(1)).ok_or(0usize)?;
        let parent = blocks.checked_sub(2).map_or(saved.root, |before| saved.keys[before]);
        let place = BlockPosition {
            parent,
            start: positions - BLOCK,
            tokens: tokens[positions - BLOCK..positions].to_vec(),
        };
        let path = self.state_path(saved.root, key);
        // Another process may have removed it since.
        let bytes = self.storage.read(&path).map_err(|_| 0usize)?;
        let read = Snapshot::read(&bytes, &place).map_err(|Invalid(why)| {
            tracing::warn!(path = %path.display(), why, "removing a saved checkpoint that is damaged or not for this text");
            folder::remove(&path).ok();
            1usize
        })?;
        self.writer.touch(vec![path]);
        Ok(read)
    }

    /// Starts a search for blocks of `tokens`, and checkpoints at the lengths `states`, that are not saved. The writer sends the result.
    pub(crate) fn survey(&self, tier: Tier, tokens: Arc<[u32]>, states: Vec<usize>) -> Receiver<Missing> {
        let folder = self.folder.clone();
        self.writer.survey(MissingSearch { folder, root: self.root(tier), tokens, states })
    }

    /// Queues the layers of a missing block. Never blocks; call it only if [`has_room`](Self::has_room) returns true.
    pub(crate) fn save(&self, missing: &Missing, end: usize, layers: Vec<Layer>) {
        let (key, place) = missing.place(end);
        self.writer.write(self.path(missing.root(), key), Content::Block(Block { place, layers }));
    }

    /// Queues a missing checkpoint, like [`save`](Self::save).
    pub(crate) fn save_state(&self, missing: &Missing, end: usize, layers: Vec<Vec<Layer>>) {
        let (key, place) = missing.place(end);
        self.writer
            .write(self.state_path(missing.root(), key), Content::Snapshot(Snapshot { place, layers }));
    }

    /// Returns true if the writer's queue has space.
    pub(crate) fn has_room(&self) -> bool {
        self.writer.has_room()
    }

    /// Waits until the writer's queue has space; false if the disk completes nothing within `patience`.
    pub(crate) fn wait_for_room(&self, patience: Duration) -> bool {
        self.writer.wait_for_room(patience)
    }

    /// Waits until the writer's queue is empty; false if the disk completes nothing within `patience`.
    pub(crate) fn wait_until_idle(&self, patience: Duration) -> bool {
        self.writer.wait_until_idle(patience)
    }

    /// Writes the queued files and ends the writer. Stops waiting if the disk completes nothing within `patience`.
    pub(crate) fn close(&self, patience: Duration) {
        self.writer.close(patience);
    }
}

/// A completely saved text that is not a prefix of a longer saved text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedPrefix {
    /// The fingerprint of the model.
    pub model: String,
    /// The name of its last block, for [`remove_saved`].
    pub name: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Bytes of its files, including those shared with other texts.
    pub bytes: u64,
}

/// Lists the texts saved in `folder`, for all models. Skips unreadable files and texts that need them.
pub fn list_saved(folder: &Path) -> Result<Vec<SavedPrefix>> {
    let mut blocks: BTreeMap<(String, String), (BlockPosition, u64)> = BTreeMap::new();
    for file in folder::list(folder)? {
        let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let model = file.path.parent().map(name).unwrap_or_default();
        let Ok(Ok(place)) = folder::header(&file.path).map(|header| BlockPosition::claimed(&header)) else {
            continue;
        };
        // A name is the hash of the name before it and its tokens, so there are no cycles.
        if place.parent.then(&place.tokens).to_string() == name(&file.path) {
            blocks.insert((model, name(&file.path)), (place, file.bytes));
        }
    }
    let continued: BTreeSet<(String, String)> =
        blocks.iter().map(|((model, _), (place, _))| (model.clone(), place.parent.to_string())).collect();
    let ends = blocks.keys().filter(|key| !continued.contains(*key));
    let text = |(model, name): &(String, String)| {
        let (mut tokens, mut bytes, mut at) = (Vec::new(), 0, name.clone());
        while at != *model {
            let (place, size) = blocks.get(&(model.clone(), at))?;
            tokens.push(place.tokens.as_slice());
            (bytes, at) = (bytes + size, place.parent.to_string());
        }
        let tokens = tokens.into_iter().rev().flatten().copied().collect();
        Some(SavedPrefix { model: model.clone(), name: name.clone(), tokens, bytes })
    };
    Ok(ends.filter_map(text).collect())
}

/// Removes the saved texts whose names begin with `name`, with all blocks that no other text shares. Returns the number of files.
pub fn remove_saved(folder: &Path, name: &str) -> Result<usize> {
    let texts = list_saved(folder)?;
    let (going, staying): (Vec<_>, Vec<_>) = texts.into_iter().partition(|text| text.name.starts_with(name));
    let paths = |texts: &[SavedPrefix]| -> BTreeSet<PathBuf> {
        let of_text = |text: &SavedPrefix| {
            let model = Key::root(u128::from_str_radix(&text.model, 16).unwrap_or_default());
            let paths =
                move |key| [folder::path_of(folder, model, key), folder::state_path_of(folder, model, key)];
            model.chain(&text.tokens).into_iter().flat_map(paths).filter(|path| path.exists())
        };
        texts.iter().flat_map(of_text).collect()
    };
    let (going, staying) = (paths(&going), paths(&staying));
    let gone: Vec<&PathBuf> = going.difference(&staying).collect();
    for path in &gone {
        folder::remove(path)?;
    }
    Ok(gone.len())
}

/// Removes all blocks in `folder`, including damaged ones. Returns the number of files.
pub fn remove_all_saved(folder: &Path) -> Result<usize> {
    let files = folder::list(folder)?;
    for file in &files {
        folder::remove(&file.path)?;
    }
    Ok(files.len())
}
