//! The prefix cache: stores computed prefixes of ended requests in memory and on disk, and shares prefixes between requests in flight.
//! Invariant: prefixes in memory and all reservations together never exceed the budget.

mod checkpoints;
mod disk;
mod sharing;
mod store;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use self::disk::{DISK_TIMEOUT, DiskPrefixes, Request, Restored};
pub(super) use self::sharing::{share, share_whole_prompt};
use self::store::{PrefixMatch, PrefixQuery, PrefixStore};
use super::capacity::Capacity;
use super::run::device::Device;
use super::schedule::plan::StepPlan;
use super::sequence::{Run, Sequence, Sequences, Wait};
use super::stats::Gauges;
use crate::cache::{DiskCache, Rollback, SequenceState, Variant};
use crate::error::Result;
use crate::folder::ModelFolder;

/// The prefixes of an engine.
pub(super) struct Prefixes {
    store: PrefixStore,
    capacity: Capacity,
    disk: Option<DiskPrefixes>,
    folder: Arc<ModelFolder>,
    gauges: Arc<Gauges>,
}

impl Prefixes {
    /// Creates a cache of at most `limit` bytes in memory, with the given cache on disk.
    pub(super) fn new(
        limit: u64,
        capacity: Capacity,
        disk: Option<DiskCache>,
        (folder, gauges): (Arc<ModelFolder>, Arc<Gauges>),
    ) -> Result<Self> {
        let disk = disk.map(|cache| DiskPrefixes::start(cache, DISK_TIMEOUT)).transpose()?;
        let store = PrefixStore::new(limit, Arc::clone(&gauges));
        Ok(Self { store, capacity, disk, folder, gauges })
    }

    /// Returns the bytes of the prefixes in memory and of the checkpoints of running sequences.
    pub(super) fn bytes(&self, sequences: &Sequences) -> u64 {
        self.store.bytes() + checkpoints::bytes(sequences)
    }

    /// Records the number and bytes of the prefixes in memory.
    pub(super) fn record(&self, sequences: &Sequences) {
        self.gauges.prefix_bytes.store(self.bytes(sequences), Ordering::Relaxed);
        self.gauges.prefixes.store(self.store.len(), Ordering::Relaxed);
    }

    /// Drops all prefixes in memory.
    pub(super) fn clear(&mut self) {
        self.store.clear();
    }

    /// Evicts prefixes, and drops checkpoints of running sequences, until the remaining ones fit into `free` bytes.
    pub(super) fn shrink_to_fit(&mut self, sequences: &mut Sequences, free: u64) {
        let held = checkpoints::evict_until(sequences, self.store.limit(free));
        self.store.shrink_to_fit(free.saturating_sub(held));
    }

    /// Returns the bytes that checkpoints of prompts may take in a step, out of `free` bytes. Evicts older prefixes to make space for them.
    pub(super) fn checkpoint_budget(&mut self, plan: &StepPlan, sequences: &mut Sequences, free: u64) -> u64 {
        let chunks: usize = plan.prefill.iter().map(|pass| pass.chunks.len()).sum();
        let checkpoint = self.capacity.checkpoint_bytes();
        if checkpoint == 0 || chunks == 0 || !self.store.is_on() {
            return 0;
        }
        let wanted = chunks as u64 * checkpoint;
        let limit = self.store.limit(free);
        let held = checkpoints::evict_until(sequences, limit.saturating_sub(wanted));
        self.store.shrink_to_fit(limit.saturating_sub(wanted + held));
        limit.saturating_sub(held + self.store.bytes())
    }

    /// Starts admitted sequences with the prefixes that they can reuse. Evicts other prefixes until the rest fits into the `free`
    /// unreserved bytes.
    pub(super) fn start(&mut self, ids: &[u64], free: u64, sequences: &mut Sequences, device: &Device) {
        let known: Vec<_> = ids.iter().map(|id| self.find(*id, sequences.get_mut(*id), device)).collect();
        self.shrink_to_fit(sequences, free);
        for (id, known) in ids.iter().zip(known) {
            self.start_one(*id, known, sequences, device);
        }
    }

    /// Finds the longest prefix in memory that a waiting sequence can reuse. The lookup counts as a use, so the prefix is evicted last.
    fn find(&mut self, id: u64, sequence: &mut Sequence, device: &Device) -> Option<PrefixMatch> {
        let _request = sequence.outlet.span.clone().entered();
        // Scores and embeddings need the hidden state of every position.
        if sequence.reader.is_on() || !self.store.is_on() {
            return None;
        }
        let reusable = |length| device.reusable(length, sequence.exact(), sequence.media.undivided());
        let keys = sequence.prompt_keys()?;
        let lookup = PrefixQuery { prompt: &keys, tiers: sequence.readable_tiers(), reusable: &reusable };
        let (known, miss) = self.store.find(&lookup);
        let record = |miss| self.store.record_miss(id, &keys, &miss, &self.folder);
        let recorded = miss.filter(|_| sequence.awaits_first_token()).and_then(record);
        let common = miss.map_or(0, |miss| miss.common);
        sequence.plan_checkpoints(known.map_or(0, PrefixMatch::length), common, device);
        if sequence.awaits_first_token() && miss.is_some() {
            sequence.miss = recorded;
        }
        known
    }

    /// Starts an admitted sequence. It waits if another sequence computes a prefix longer than `known` or if its prefix is read from disk;
    /// otherwise it gets a copy of the known prefix. Nothing may be pending on the device.
    fn start_one(&mut self, id: u64, known: Option<PrefixMatch>, sequences: &mut Sequences, device: &Device) {
        let length = known.map_or(0, PrefixMatch::length);
        let source = sharing::source_for(id, sequences, device).filter(|source| source.length > length);
        let source = source.map(|source| sharing::follow(id, source, sequences, device));
        let sequence = sequences.get_mut(id);
        let empty = device.new_state(sequence.history.len());
        if let Some(source) = source {
            sequence.start(empty, Wait::Source(source));
        } else if self.asks_disk(id, sequence, length, device) {
            sequence.start(empty, Wait::Disk(Instant::now()));
        } else {
            let state = known.and_then(|known| self.copy(known, sequence, device));
            sequence.start(state.unwrap_or(empty), Wait::Nothing);
        }
    }

    fn asks_disk(&mut self, id: u64, sequence: &Sequence, known: usize, device: &Device) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        // Only states of the default variant are saved.
        if sequence.reader.is_on() || device.variant(sequence.history.len()) != Variant::default() {
            return false;
        }
        disk.request(Request {
            id,
            // The positions after a picture are not saved.
            prompt: sequence.before_media(sequence.history.prompt_length()).to_vec(),
            tiers: sequence.readable_tiers(),
            exact: sequence.exact().then_some(device.chunks),
            known,
            checkpoints: device.needs_checkpoints(),
        })
    }

    fn copy(&self, known: PrefixMatch, sequence: &Sequence, device: &Device) -> Option<SequenceState> {
        self.store.copy(known, |state| device.fits(state, sequence.history.len()))
    }

    /// Gives sequences the prefixes that were read for them. Waits up to `wait` for the first. A sequence that has waited too long, or
    /// whose prefix is not on disk, continues with a prefix from memory, if any. Nothing may be pending on the device.
    pub(super) fn receive(&mut self, sequences: &mut Sequences, device: &Device, wait: Option<Duration>) {
        let Some(disk) = &mut self.disk else { return };
        let mut done: Vec<u64> = Vec::new();
        for restored in disk.restored(wait) {
            Gauges::add(&self.gauges.damaged_blocks, restored.damaged);
            let id = restored.id;
            let waits = sequences.find(id).is_some_and(Sequence::waits_for_disk);
            if waits && !self.restore(&restored, sequences.get_mut(id), device) {
                done.push(id);
            }
        }
        let late = |sequence: &Sequence| match sequence.run.as_ref().map(|run| run.wait) {
            Some(Wait::Disk(since)) => since.elapsed() > DISK_TIMEOUT,
            _ => false,
        };
        done.extend(sequences.iter().filter(|(_, it)| late(it)).map(|(id, _)| id));
        for id in done {
            let known = self.find(id, sequences.get_mut(id), device);
            let copy = known.and_then(|known| self.copy(known, sequences.get(id), device));
            let sequence = sequences.get_mut(id);
            match copy {
                Some(state) => sequence.resume_with(state),
                None => sequence.running().wait = Wait::Nothing,
            }
        }
    }

    /// Gives a sequence the prefix that was read for it. Returns false if there is no usable prefix.
    fn restore(&self, restored: &Restored, sequence: &mut Sequence, device: &Device) -> bool {
        let _request = sequence.outlet.span.clone().entered();
        if restored.blocks.is_empty() {
            return false;
        }
        let mut state = device.new_state(0);
        let imported = state.import(&restored.blocks).and_then(|()| match &restored.snapshot {
            Some(snapshot) => state.import_checkpoint(snapshot, restored.length),
            None => Ok(()),
        });
        match imported {
            Ok(()) if state.rollback(restored.length) == Rollback::Done => {
                Gauges::add(&self.gauges.prefix_restores, 1);
                sequence.resume_with(state);
                true
            }
            Ok(()) => false,
            Err(error) => {
                tracing::warn!(%error, "cannot restore a saved prefix");
                false
            }
        }
    }

    /// Stores the reusable states of ended sequences. Together with the checkpoints of running sequences they must fit into the `free`
    /// unreserved bytes. Nothing may be pending on the device.
    pub(super) fn store_ended(
        &mut self,
        ended: Vec<Sequence>,
        sequences: &Sequences,
        free: u64,
        device: &Device,
    ) {
        for sequence in ended {
            self.store_one(sequence, device, free.saturating_sub(checkpoints::bytes(sequences)));
        }
    }

    fn store_one(&mut self, mut sequence: Sequence, device: &Device, free: u64) {
        let _request = sequence.outlet.span.clone().entered();
        // Texts that were scored or embedded are rarely continued.
        let was_read = sequence.reader.is_on() || sequence.limits.max_tokens == 0;
        if sequence.quarantined || was_read || !self.store.is_on() {
            return;
        }
        // Decode steps and prefill chunks produce different bits, so exact states end at the prompt.
        let tier = sequence.tier(sequence.exact());
        let length = if tier.exact { sequence.history.prompt_length() } else { sequence.history.len() };
        sequence.rollback(length, device);
        let Some(Run { mut state, .. }) = sequence.run.take() else { return };
        let length = state.offset();
        let Some(keys) = sequence.keys(length) else { return };
        let held = state.bytes() as u64;
        while state.checkpoint_bytes() as u64 + held > self.store.limit(free)
            && state.evict_checkpoint().is_some()
        {}
        let beside = state.checkpoint_bytes() as u64;
        let least = self.capacity.state_bytes(length);
        // During the copy to a smaller buffer both buffers exist. A pooled buffer is shared with other sequences and would keep their
        // states in memory too.
        let copy = least < held || state.is_pooled();
        let (bytes, at_once) = if copy { (least.min(held), least.min(held) + held) } else { (held, held) };
        if length == 0 || !self.store.make_space(bytes + beside, at_once + beside, free) {
            return;
        }
        match store::compact(state, copy) {
            Ok(Some(state)) => {
                if let Some(disk) = self.disk.as_mut().filter(|_| state.variant() == Variant::default()) {
                    let needed = state.needs_checkpoints();
                    let states = state.checkpoints().chain([length]).filter(|_| needed).collect();
                    disk.queue(tier, sequence.before_media(length), states);
                }
                self.store.insert(tier, &keys, state);
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "cannot cache a prefix"),
        }
        // A state may take more than estimated.
        self.store.shrink_to_fit(free);
    }

    /// Queues the next block of a prefix for the disk. Returns true if there is more to save. Nothing may be pending on the device.
    pub(super) fn save_next(&mut self) -> bool {
        self.disk.as_mut().is_some_and(|disk| disk.save_next(&self.store))
    }

    /// Saves all pending prefixes. Waits for the disk as long as it makes progress. Nothing may be pending on the device.
    pub(super) fn save_all(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.save_all(&self.store);
        }
    }
}
