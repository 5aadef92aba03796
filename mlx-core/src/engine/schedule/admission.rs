//! Admission: which requests run and which wait. Invariant: pure; it sees ids, ranks and bytes, never an array or a token.

use std::time::Duration;

use super::ledger::Ledger;
use crate::engine::options::Priority;

/// The queue, the running sequences and their reservations.
#[derive(Debug)]
pub(super) struct Admission {
    ledger: Ledger,
    max_running: usize,
    /// By rank.
    waiting: Vec<Entry>,
    running: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: u64,
    priority: Priority,
    /// The time of arrival, later for a low priority: after enough waiting it ranks above any later request.
    due: Duration,
    /// Bytes it needs to start.
    bytes: u64,
}

/// A change of what runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It starts; its bytes are reserved.
    Start(u64),
    /// It goes back to the queue: its state is dropped, its tokens stay.
    Preempt(u64),
}

/// How much is added to the time of arrival.
fn handicap(priority: Priority) -> Duration {
    Duration::from_secs(match priority {
        Priority::High => 0,
        Priority::Normal => 10,
        Priority::Low => 40,
    })
}

impl Entry {
    /// Better entries compare as less.
    fn rank(&self) -> (Duration, u64) {
        (self.due, self.id)
    }

    /// Whether this entry may preempt `other`: only with a higher priority, or nothing would ever finish.
    fn displaces(&self, other: &Self) -> bool {
        self.priority > other.priority && self.rank() < other.rank()
    }
}

impl Admission {
    /// For at most `max_running` sequences within `budget` bytes.
    pub(super) fn new(max_running: usize, budget: u64) -> Self {
        Self {
            ledger: Ledger::new(budget),
            max_running: max_running.max(1),
            waiting: Vec::new(),
            running: Vec::new(),
        }
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// Queues a request that came at `now` and needs `bytes` to start; alone, it must fit.
    pub(super) fn submit(&mut self, id: u64, priority: Priority, bytes: u64, now: Duration) {
        self.wait(Entry { id, priority, due: now + handicap(priority), bytes });
    }

    fn wait(&mut self, entry: Entry) {
        let place = self.waiting.partition_point(|other| other.rank() < entry.rank());
        self.waiting.insert(place, entry);
    }

    /// Starts requests in the order of their ranks, as long as they fit. Nothing overtakes the first, so no request is too large to start.
    pub(super) fn admit(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(&first) = self.waiting.first() {
            if !self.has_room(first.bytes) {
                let Some(victims) = self.victims(&first) else { break };
                for victim in victims {
                    self.preempt(victim, None);
                    changes.push(Change::Preempt(victim));
                }
            }
            // Preempted entries rank below the first, so it is still the first.
            self.waiting.remove(0);
            self.ledger.reserve(first.id, first.bytes);
            self.running.push(first);
            changes.push(Change::Start(first.id));
        }
        changes
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.running.len() < self.max_running && self.ledger.fits(bytes)
    }

    /// The fewest running entries, lowest rank first, that must be preempted for `entry` to start; `None` if all of them are too few.
    fn victims(&self, entry: &Entry) -> Option<Vec<u64>> {
        let mut candidates: Vec<&Entry> = self.running.iter().filter(|it| entry.displaces(it)).collect();
        candidates.sort_by_key(|it| std::cmp::Reverse(it.rank()));
        let free = self.ledger.budget() - self.ledger.reserved();
        let (mut bytes, mut places) = (free, self.max_running - self.running.len());
        let mut victims = Vec::new();
        for candidate in candidates {
            if bytes >= entry.bytes && places > 0 {
                break;
            }
            bytes += self.ledger.reserved_by(candidate.id);
            places += 1;
            victims.push(candidate.id);
        }
        (bytes >= entry.bytes && places > 0).then_some(victims)
    }

    /// Puts a running sequence back into the queue, where it keeps its rank; it needs `bytes` to start again, or what it held.
    fn preempt(&mut self, id: u64, bytes: Option<u64>) {
        let Some(place) = self.running.iter().position(|it| it.id == id) else { return };
        let mut entry = self.running.remove(place);
        entry.bytes = bytes.unwrap_or_else(|| self.ledger.reserved_by(id));
        self.ledger.release(id);
        self.wait(entry);
    }

    /// Puts a running sequence back into the queue whatever its rank, as after a failed pass.
    pub(super) fn requeue(&mut self, id: u64) {
        self.preempt(id, None);
    }

    /// Reserves `bytes` more for a running sequence. Without room, running sequences of a lower rank are preempted, the lowest first;
    /// if all of them are too few, the sequence itself is. Returns the preempted ones.
    pub(super) fn grow(&mut self, id: u64, bytes: u64) -> Vec<u64> {
        let Some(&entry) = self.running.iter().find(|it| it.id == id) else { return Vec::new() };
        let mut gone = Vec::new();
        let below = |it: &&Entry| it.rank() > entry.rank();
        let theirs: u64 = self.running.iter().filter(below).map(|it| self.ledger.reserved_by(it.id)).sum();
        // Preempt no sequence in vain.
        let enough = self.ledger.fits(bytes.saturating_sub(theirs));
        while !self.ledger.reserve(id, bytes) {
            let candidates = self.running.iter().filter(below).filter(|_| enough);
            let Some(last) = candidates.max_by_key(|it| it.rank()).map(|it| it.id) else {
                self.preempt(id, Some(self.ledger.reserved_by(id) + bytes));
                gone.push(id);
                break;
            };
            self.preempt(last, None);
            gone.push(last);
        }
        gone
    }

    /// Records the bytes that a running sequence holds; returns what exceeds its reservation.
    pub(super) fn record_used(&mut self, id: u64, bytes: u64) -> u64 {
        self.ledger.record_used(id, bytes)
    }

    /// Removes a sequence that has ended, wherever it was.
    pub(super) fn remove(&mut self, id: u64) {
        self.waiting.retain(|it| it.id != id);
        self.running.retain(|it| it.id != id);
        self.ledger.release(id);
    }
}
