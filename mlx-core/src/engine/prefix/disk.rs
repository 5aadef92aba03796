//! Prefixes on disk: read by a thread of their own, so that a slow disk stalls no stream, and saved block by block between steps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::store::PrefixStore;
use crate::cache::{BLOCK, Block, DiskCache, Saved, Snapshot, Tier, Variant};
use crate::engine::schedule::chunks::Chunks;
use crate::engine::schedule::undivided::Undivided;
use crate::error::{Error, Result};

/// How long a sequence waits for its prefix before it computes the prompt itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The most texts that wait to be saved. Their tokens have no reservation, and a disk may stall for ever.
const MOST_PENDING: usize = 64;

/// Blocks that are looked up at once in search of the next one to save.
const SKIPPED: usize = 64;

/// The saved prefixes of a model, the thread that reads them, and what is still to be saved.
pub(super) struct DiskPrefixes {
    cache: Arc<DiskCache>,
    pending: VecDeque<Pending>,
    /// `None` while it is dropped.
    requests: Option<Sender<Request>>,
    restored: Receiver<Restored>,
    reader: Option<JoinHandle<()>>,
}

/// A text that is being saved.
struct Pending {
    tier: Tier,
    tokens: Vec<u32>,
    /// Where its next block ends.
    end: usize,
    /// Whether that block is saved, and what is left is the checkpoint behind it.
    is_block_saved: bool,
}

/// A prompt in search of its prefix.
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) prompt: Vec<u32>,
    /// The tiers to look in.
    pub(super) tiers: Vec<Tier>,
    /// The chunks whose borders a reused prefix must respect, for an exact request.
    pub(super) exact: Option<Chunks>,
    /// The positions that can be had from memory.
    pub(super) known: usize,
    /// Whether a prefix ends at a checkpoint.
    pub(super) checkpoints: bool,
}

/// What was read for a sequence.
pub(super) struct Restored {
    pub(super) id: u64,
    /// Consecutive blocks from the first position; empty if memory knows as much.
    pub(super) blocks: Vec<Block>,
    /// What layers hold that do not keep every position, where there are such.
    pub(super) snapshot: Option<Snapshot>,
    /// The positions to reuse.
    pub(super) length: usize,
    /// Damaged files that were removed.
    pub(super) damaged: usize,
}

impl DiskPrefixes {
    /// Starts the reader.
    pub(super) fn start(cache: DiskCache) -> Result<Self> {
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
            .map_err(|error| Error::EngineStopped(format!("the prefix reader could not start: {error}")))?;
        let (requests, reader) = (Some(requests), Some(reader));
        Ok(Self { cache, pending: VecDeque::new(), requests, restored, reader })
    }

    /// Asks for the prefix of a prompt; [`DiskPrefixes::restored`] gives the reply.
    pub(super) fn request(&self, request: Request) -> bool {
        // A prompt of one block or less cannot reuse a whole one.
        request.prompt.len() > BLOCK.max(request.known)
            && self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok())
    }

    /// The replies that have come, or the next one if it comes within `wait`.
    pub(super) fn restored(&self, wait: Option<Duration>) -> Vec<Restored> {
        let first = wait.and_then(|wait| self.restored.recv_timeout(wait).ok());
        first.into_iter().chain(self.restored.try_iter()).collect()
    }

    /// Queues a text to be saved, as far as it is not.
    pub(super) fn queue(&mut self, tier: Tier, tokens: &[u32]) {
        if tokens.len() >= BLOCK {
            if self.pending.len() == MOST_PENDING {
                // The oldest is the likeliest to have left the memory that it would be saved from.
                self.pending.pop_front();
            }
            self.pending.push_back(Pending {
                tier,
                tokens: tokens.to_vec(),
                end: BLOCK,
                is_block_saved: false,
            });
        }
    }

    /// Saves the next pending block; with `wait`, waits until the writer has room for it. Returns whether more is pending. Nothing else
    /// may be pending on the device.
    pub(super) fn save_next(&mut self, store: &PrefixStore, wait: bool) -> bool {
        let Some(text) = self.pending.front_mut() else { return false };
        if !wait && !self.cache.has_room() {
            return true;
        }
        let goes_on = save(&self.cache, store, text).unwrap_or_else(|error| {
            tracing::warn!(%error, "a prefix could not be saved");
            false
        });
        if !goes_on || text.end > text.tokens.len() {
            self.pending.pop_front();
        }
        !self.pending.is_empty()
    }
}

impl Drop for DiskPrefixes {
    fn drop(&mut self) {
        // The reader shares the cache, whose last owner waits for the writer: that must be this thread.
        drop(self.requests.take());
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
    }
}

/// Saves the next block of a text that is not saved yet, or the next checkpoint, and moves behind it; false if the text cannot be saved
/// any further.
fn save(cache: &DiskCache, store: &PrefixStore, text: &mut Pending) -> Result<bool> {
    for _ in 0..SKIPPED {
        let end = text.end;
        let (Some(prefix), is_block) = (text.tokens.get(..end), !text.is_block_saved) else {
            return Ok(true);
        };
        text.is_block_saved = is_block;
        text.end += if is_block { 0 } else { BLOCK };
        let is_there =
            if is_block { cache.has(text.tier, prefix) } else { cache.has_state(text.tier, prefix) };
        if is_there {
            continue;
        }
        // It may have been evicted from memory.
        let state = store.peek(text.tier, prefix).filter(|state| state.variant() == Variant::default());
        let Some(state) = state else { return Ok(false) };
        if is_block {
            let Some(layers) = state.export(end - BLOCK..end)? else { return Ok(false) };
            return Ok(cache.save(text.tier, prefix, layers));
        }
        if state.needs_checkpoints()
            && let Some(layers) = state.export_checkpoint(end)?
        {
            return Ok(cache.save_state(text.tier, prefix, layers));
        }
    }
    Ok(true)
}

/// Reads the longest prefix of a prompt, from the tier that has more of it.
fn read(cache: &DiskCache, request: &Request) -> Restored {
    let Request { id, ref prompt, ref tiers, exact, known, checkpoints } = *request;
    let reusable = |length: usize| {
        let length = length.min(prompt.len() - 1);
        exact.map_or(length, |chunks| chunks.border(length, &Undivided::default()))
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
