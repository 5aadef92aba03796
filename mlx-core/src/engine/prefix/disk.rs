//! Prefixes on disk. One thread reads them; another finds and writes the missing ones. Invariant: the engine's thread never waits for the
//! disk, except to save the last prefixes when the engine ends.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::store::{PrefixMatch, PrefixStore};
use crate::cache::{BLOCK, Block, DiskCache, Missing, Part, Saved, SequenceState, Snapshot, Tier, Variant};
use crate::engine::schedule::chunks::Chunks;
use crate::engine::schedule::undivided::Undivided;
use crate::error::{Error, Result};

/// The maximum time that a sequence waits for its prefix before it computes the prompt, and that a stopping engine waits for a disk that
/// makes no progress.
pub(super) const DISK_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of texts that wait to be saved. Their tokens have no reservation, and a disk may stall forever.
const MAX_PENDING: usize = 64;

/// The saved prefixes of a model, the thread that reads them, and the texts to be saved.
pub(super) struct DiskPrefixes {
    cache: Arc<DiskCache>,
    pending: VecDeque<Pending>,
    /// `None` while this value is dropped.
    requests: Option<Sender<Request>>,
    restored: Receiver<Restored>,
    reader: Option<JoinHandle<()>>,
    /// The times of the requests without a reply, oldest first.
    unanswered: VecDeque<Instant>,
    patience: Duration,
}

/// A text that is being saved.
struct Pending {
    tier: Tier,
    tokens: Arc<[u32]>,
    progress: Progress,
    /// The state in memory that holds its values.
    source: Option<PrefixMatch>,
}

/// The progress of saving a text.
enum Progress {
    /// The text has checkpoints at these lengths.
    Queued(Vec<usize>),
    /// The writer is looking for the missing files.
    Surveying(Receiver<Missing>),
    Saving(Missing),
}

/// A lookup of a prompt's prefix on disk.
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) prompt: Vec<u32>,
    /// The tiers to search.
    pub(super) tiers: Vec<Tier>,
    /// The chunks of an exact request. A reused prefix must end at one of their boundaries.
    pub(super) exact: Option<Chunks>,
    /// The positions that are available from memory.
    pub(super) known: usize,
    /// True if a prefix must end at a checkpoint.
    pub(super) checkpoints: bool,
}

/// The reply to a request.
pub(super) struct Restored {
    pub(super) id: u64,
    /// Consecutive blocks from the first position; empty if the disk has no more than memory.
    pub(super) blocks: Vec<Block>,
    /// The state of layers that do not store every position, if the model has such layers.
    pub(super) snapshot: Option<Snapshot>,
    /// The positions to reuse.
    pub(super) length: usize,
    /// The number of damaged files that were removed.
    pub(super) damaged: usize,
}

impl DiskPrefixes {
    /// Starts the reader. A disk that does not respond within `patience` is not used.
    pub(super) fn start(cache: DiskCache, patience: Duration) -> Result<Self> {
        let cache = Arc::new(cache);
        let (requests, queue) = channel::<Request>();
        let (replies, restored) = channel();
        let shared = Arc::clone(&cache);
        let work = move || {
            for request in queue {
                if replies.send(read(&shared, &request)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("prefix-reader".into()).spawn(work);
        let reader = thread
            .map_err(|error| Error::EngineStopped(format!("cannot start the prefix reader: {error}")))?;
        Ok(Self {
            cache,
            pending: VecDeque::new(),
            requests: Some(requests),
            restored,
            reader: Some(reader),
            unanswered: VecDeque::new(),
            patience,
        })
    }

    /// Requests the prefix of a prompt; [`DiskPrefixes::restored`] returns the reply. Returns false if no reply will come.
    pub(super) fn request(&mut self, request: Request) -> bool {
        // If the disk does not respond, the first requests wait for `patience` and the others do not wait.
        let is_away = self.unanswered.front().is_some_and(|sent| sent.elapsed() > self.patience);
        // A prompt of at most one block cannot reuse a whole block.
        let is_sent = !is_away
            && request.prompt.len() > BLOCK.max(request.known)
            && self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok());
        if is_sent {
            self.unanswered.push_back(Instant::now());
        }
        is_sent
    }

    /// Returns the replies that have arrived. If there are none, waits up to `wait` for the next one.
    pub(super) fn restored(&mut self, wait: Option<Duration>) -> Vec<Restored> {
        let first = wait.and_then(|wait| self.restored.recv_timeout(wait).ok());
        let replies: Vec<Restored> = first.into_iter().chain(self.restored.try_iter()).collect();
        // Replies arrive in the order of the requests.
        self.unanswered.drain(..replies.len().min(self.unanswered.len()));
        replies
    }

    /// Queues the unsaved files of a text, with its checkpoints at the lengths `states`.
    pub(super) fn queue(&mut self, tier: Tier, tokens: &[u32], states: Vec<usize>) {
        if tokens.len() >= BLOCK {
            if self.pending.len() == MAX_PENDING {
                // The state of the oldest text is the most likely to have been evicted from memory.
                self.pending.pop_front();
            }
            let progress = Progress::Queued(states);
            self.pending.push_back(Pending { tier, tokens: tokens.into(), progress, source: None });
        }
    }

    /// Queues the next block of a pending text for the writer, if its queue has space. Returns true if more is pending. Nothing else may be
    /// pending on the device.
    pub(super) fn save_next(&mut self, store: &PrefixStore) -> bool {
        let Some(text) = self.pending.front_mut() else { return false };
        if !self.cache.has_room() {
            return true;
        }
        let goes_on = text.advance(&self.cache, store).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot save a prefix");
            false
        });
        if !goes_on {
            self.pending.pop_front();
        }
        !self.pending.is_empty()
    }

    /// Saves all pending texts. Stops if the disk completes nothing within `patience`.
    pub(super) fn save_all(&mut self, store: &PrefixStore) {
        while self.cache.wait_for_room(self.patience) {
            if let Some(Progress::Surveying(_)) = self.pending.front().map(|text| &text.progress)
                && !self.cache.wait_until_idle(self.patience)
            {
                return;
            }
            if !self.save_next(store) {
                return;
            }
        }
    }
}

impl Pending {
    /// Advances by one step without waiting. Returns false if the text is saved or can no longer be saved.
    fn advance(&mut self, cache: &DiskCache, store: &PrefixStore) -> Result<bool> {
        match &mut self.progress {
            Progress::Queued(states) => {
                let states = std::mem::take(states);
                self.progress =
                    Progress::Surveying(cache.survey(self.tier, Arc::clone(&self.tokens), states));
            }
            Progress::Surveying(reply) => match reply.try_recv() {
                Ok(missing) => self.progress = Progress::Saving(missing),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(false),
            },
            Progress::Saving(_) => return self.save(cache, store),
        }
        Ok(true)
    }

    /// Queues the next missing block or checkpoint.
    fn save(&mut self, cache: &DiskCache, store: &PrefixStore) -> Result<bool> {
        let Progress::Saving(missing) = &mut self.progress else { return Ok(true) };
        while let Some(part) = missing.take_next() {
            let (Part::Block(end) | Part::State(end)) = part;
            // The state may have been evicted, or replaced by a longer one; then the tree is searched again.
            let is_there = |known: &PrefixMatch| store.get(*known).is_some();
            self.source =
                self.source.filter(is_there).or_else(|| store.locate(self.tier, &self.tokens[..end]));
            let Some(state) = self.source.and_then(|known| saved_from(store, known)) else {
                return Ok(false);
            };
            match part {
                Part::Block(_) => {
                    let Some(layers) = state.export(end - BLOCK..end)? else { return Ok(false) };
                    cache.save(missing, end, layers);
                }
                Part::State(_) => match state.export_checkpoint(end)? {
                    Some(layers) => cache.save_state(missing, end, layers),
                    None => continue,
                },
            }
            return Ok(!missing.is_empty());
        }
        Ok(false)
    }
}

/// Returns a state that is still in memory and has the variant that is saved.
fn saved_from(store: &PrefixStore, known: PrefixMatch) -> Option<&SequenceState> {
    store.get(known).filter(|state| state.variant() == Variant::default())
}

impl Drop for DiskPrefixes {
    fn drop(&mut self) {
        drop(self.requests.take());
        self.cache.close(self.patience);
        if let Some(reader) = self.reader.take() {
            let begun = Instant::now();
            while !reader.is_finished() && begun.elapsed() < self.patience {
                std::thread::sleep(Duration::from_millis(1));
            }
            // A reader that still waits for the disk is not joined.
            if reader.is_finished() {
                reader.join().ok();
            }
        }
    }
}

/// Reads the longest prefix of a prompt, from the tier with the longest match.
fn read(cache: &DiskCache, request: &Request) -> Restored {
    let Request { id, ref prompt, ref tiers, exact, known, checkpoints } = *request;
    let reusable = |length: usize| {
        let length = length.min(prompt.len() - 1);
        exact.map_or(length, |chunks| chunks.chunk_boundary(length, &Undivided::default()))
    };
    let usable = |found: &Saved| {
        let length = reusable(found.length());
        if checkpoints { cache.last_state(found, length) } else { length }
    };
    let found = tiers.iter().map(|tier| cache.find(*tier, prompt));
    let nothing = |damaged| Restored { id, blocks: Vec::new(), snapshot: None, length: 0, damaged };
    let Some(best) = found.max_by_key(usable).filter(|found| usable(found) > known) else {
        return nothing(0);
    };
    let length = usable(&best);
    let snapshot = match checkpoints.then(|| cache.load_state(&best, prompt, length)).transpose() {
        Ok(snapshot) => snapshot,
        Err(damaged) => return nothing(damaged),
    };
    let (mut blocks, damaged) = cache.load(&best, prompt, length);
    let length =
        if snapshot.is_some() && blocks.len() * BLOCK < length { 0 } else { reusable(blocks.len() * BLOCK) };
    if length <= known {
        return nothing(damaged);
    }
    blocks.truncate(length.div_ceil(BLOCK));
    Restored { id, blocks, snapshot, length, damaged }
}
