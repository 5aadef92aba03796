//! Who runs and who waits. Invariant: pure; it sees ids, ranks and bytes, never an array or a token.

use std::time::Duration;

use super::ledger::Ledger;
use super::options::Priority;

/// Decides who of many requests runs.
#[derive(Debug)]
pub(super) struct Scheduler {
    ledger: Ledger,
    max_running: usize,
    /// In the order of their turns.
    waiting: Vec<Entry>,
    running: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: u64,
    priority: Priority,
    /// When it came, put later for a low priority: who waits long enough comes before any later high one.
    turn: Duration,
    /// Bytes it needs to start.
    bytes: u64,
}

/// What is to happen to a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It runs now; its bytes are reserved.
    Start(u64),
    /// It waits again: its cache goes, its tokens stay.
    Preempt(u64),
}

/// How much later a request of this priority counts as having come.
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
        (self.turn, self.id)
    }

    /// Whether `other` has to make room for this one: only for a higher priority, or nothing would ever be finished.
    fn displaces(&self, other: &Self) -> bool {
        self.priority > other.priority && self.rank() < other.rank()
    }
}

impl Scheduler {
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
        self.wait(Entry { id, priority, turn: now + handicap(priority), bytes });
    }

    fn wait(&mut self, entry: Entry) {
        let place = self.waiting.partition_point(|other| other.rank() < entry.rank());
        self.waiting.insert(place, entry);
    }

    /// Starts whoever's turn it is and fits. Nobody overtakes the first in line, so nobody is too large to ever start.
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

    /// The fewest running entries, worst first, that have to go for `entry` to start; none if even all would not do.
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

    /// Puts a running sequence back in line, where it keeps its turn; it needs `bytes` to start again, or what it held.
    fn preempt(&mut self, id: u64, bytes: Option<u64>) {
        let Some(place) = self.running.iter().position(|it| it.id == id) else { return };
        let mut entry = self.running.remove(place);
        entry.bytes = bytes.unwrap_or_else(|| self.ledger.reserved_by(id));
        self.ledger.release(id);
        self.wait(entry);
    }

    /// Puts a running sequence back in line whatever its rank, as after a failed pass.
    pub(super) fn put_back(&mut self, id: u64) {
        self.preempt(id, None);
    }

    /// Promises `bytes` more to a running sequence. If there is no room, those that rank below it go back in line, the last first;
    /// if that is not enough, it goes itself. Gives those that went.
    pub(super) fn grow(&mut self, id: u64, bytes: u64) -> Vec<u64> {
        let Some(&entry) = self.running.iter().find(|it| it.id == id) else { return Vec::new() };
        let mut gone = Vec::new();
        let below = |it: &&Entry| it.rank() > entry.rank();
        let theirs: u64 = self.running.iter().filter(below).map(|it| self.ledger.reserved_by(it.id)).sum();
        // Nobody goes in vain.
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

    /// Notes the bytes that a running sequence holds; gives what goes beyond its promise.
    pub(super) fn note_used(&mut self, id: u64, bytes: u64) -> u64 {
        self.ledger.note_used(id, bytes)
    }

    /// Forgets a sequence that has ended, wherever it was.
    pub(super) fn remove(&mut self, id: u64) {
        self.waiting.retain(|it| it.id != id);
        self.running.retain(|it| it.id != id);
        self.ledger.release(id);
    }
}
