//! The run queue, which decides which sequences run and which wait. Invariant: pure. It handles ids, ranks and bytes, never arrays or
//! tokens.

mod shares;

use std::collections::BTreeMap;
use std::time::Duration;

use self::shares::Shares;
use super::ledger::{Ledger, Need};
use crate::engine::client::{Client, Priority};

/// The queue, the running sequences and their reservations.
#[derive(Debug)]
pub(in crate::engine) struct RunQueue {
    ledger: Ledger,
    max_running: usize,
    /// Waiting sequences in the order of their ranks.
    waiting: Vec<Entry>,
    running: Vec<Entry>,
    /// The time at which each client with sequences last started one.
    last_served: BTreeMap<Client, Duration>,
}

/// The client, request and priority of a sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct Ticket {
    pub(in crate::engine) client: Client,
    /// The request that contains the sequence.
    pub(in crate::engine) request: u64,
    pub(in crate::engine) priority: Priority,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: u64,
    ticket: Ticket,
    /// The time of arrival, plus a delay for lower priorities. After enough waiting the entry ranks above any later sequence.
    due: Duration,
    /// The bytes that the sequence needs to start.
    need: Need,
}

/// The free slots and bytes for a sequence to start.
#[derive(Debug, Clone, Copy, Default)]
struct Available {
    places: usize,
    bytes: u64,
    /// Bytes that are reserved for the passes of others, which this sequence can share.
    pass: u64,
}

impl Available {
    fn holds(self, need: Need) -> bool {
        self.places > 0 && self.bytes >= need.own + need.pass.saturating_sub(self.pass)
    }

    /// Adds the memory that a preempted sequence frees. `widest` is the widest pass of the remaining ones.
    fn add(&mut self, left: Need, widest: u64) {
        self.places += 1;
        self.bytes += left.own + (self.pass - widest);
        self.pass = widest;
    }
}

/// A change of the running sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Change {
    /// The sequence starts; its bytes are reserved.
    Start(u64),
    /// The sequence returns to the queue. Its state is dropped, but not its tokens.
    Preempt(u64),
}

/// Returns the delay that is added to the time of arrival.
pub(in crate::engine) fn priority_delay(priority: Priority) -> Duration {
    Duration::from_secs(match priority {
        Priority::High => 0,
        Priority::Normal => 10,
        Priority::Low => 40,
    })
}

impl Entry {
    /// Returns a sort key; a smaller key is a higher rank.
    fn rank(&self) -> (Duration, u64) {
        (self.due, self.id)
    }

    /// Returns true if this entry may preempt `other` regardless of shares. This requires a higher priority; otherwise sequences could
    /// preempt each other forever.
    fn outranks(&self, other: &Self) -> bool {
        self.ticket.priority > other.ticket.priority && self.rank() < other.rank()
    }
}

impl RunQueue {
    /// Creates a queue for at most `max_running` sequences within `budget` bytes.
    pub(in crate::engine) fn new(max_running: usize, budget: u64) -> Self {
        Self {
            ledger: Ledger::new(budget),
            max_running: max_running.max(1),
            waiting: Vec::new(),
            running: Vec::new(),
            last_served: BTreeMap::new(),
        }
    }

    pub(in crate::engine) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(in crate::engine) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(in crate::engine) fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns the priorities of the running sequences.
    pub(super) fn priorities(&self) -> BTreeMap<u64, Priority> {
        self.running.iter().map(|entry| (entry.id, entry.ticket.priority)).collect()
    }

    /// Returns the ids of all waiting and running sequences.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.waiting.iter().chain(&self.running).map(|entry| entry.id).collect()
    }

    /// Queues a sequence that arrived at `now` and needs `need` bytes to start. It must fit if no other sequence runs.
    pub(in crate::engine) fn submit(&mut self, id: u64, ticket: Ticket, need: Need, now: Duration) {
        self.wait(Entry { id, ticket, due: now + priority_delay(ticket.priority), need });
    }

    fn wait(&mut self, entry: Entry) {
        let place = self.waiting.partition_point(|other| other.rank() < entry.rank());
        self.waiting.insert(place, entry);
    }

    /// Starts sequences in order, as long as they fit.
    pub(in crate::engine) fn admit(&mut self, now: Duration) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some((entry, victims)) = self.choose(&changes) {
            for victim in victims {
                self.preempt(victim, None);
                changes.push(Change::Preempt(victim));
            }
            self.start(entry, now);
            changes.push(Change::Start(entry.id));
        }
        changes
    }

    /// Returns the entry to start now and the entries that it preempts. A client or request with no running sequence precedes the next in
    /// order while others have several. No entry takes free memory that the next in order waits for, but a client or request with no
    /// running sequence may preempt one that has several. An entry started by these changes is not preempted.
    fn choose(&self, changes: &[Change]) -> Option<(Entry, Vec<u64>)> {
        let next = self.next()?;
        let shares = Shares::new(self.running.iter().map(|it| it.ticket));
        let mut short = self.waiting.iter().filter(|it| shares.is_short(it.ticket)).copied();
        let pass = self.ledger.widest_pass();
        let free =
            Available { places: self.max_running - self.running.len(), bytes: self.ledger.free(), pass };
        if free.holds(next.need) {
            let fits = |it: &Entry| it.ticket.priority >= next.ticket.priority && free.holds(it.need);
            return Some((short.find(fits).unwrap_or(next), Vec::new()));
        }
        let mut entries = std::iter::once((next, free))
            .chain(short.map(|it| (it, Available { pass, ..Available::default() })));
        entries.find_map(|(it, available)| Some((it, self.victims(&it, available, shares.clone(), changes)?)))
    }

    /// Returns the first entry of the client that is next in order. Clients alternate, so that many sequences of one client do not delay
    /// the first of another.
    fn next(&self) -> Option<Entry> {
        let mut first: BTreeMap<Client, &Entry> = BTreeMap::new();
        for entry in &self.waiting {
            first.entry(entry.ticket.client).or_insert(entry);
        }
        let turn = |entry: &&Entry| {
            let last = self.last_served.get(&entry.ticket.client);
            last.map_or(entry.due, |last| entry.due.max(*last + priority_delay(entry.ticket.priority)))
        };
        first.into_values().min_by_key(|entry| (turn(entry), entry.rank())).copied()
    }

    fn start(&mut self, entry: Entry, now: Duration) {
        self.waiting.retain(|it| it.id != entry.id);
        self.ledger.reserve(entry.id, entry.need);
        self.running.push(entry);
        self.last_served.insert(entry.ticket.client, now);
        // Drop clients without sequences. Their next sequence is due later anyway.
        let Self { waiting, running, last_served, .. } = self;
        last_served.retain(|client, _| waiting.iter().chain(&*running).any(|it| it.ticket.client == *client));
    }

    /// Returns the running entries to preempt so that `entry` can start with the `available` memory, lowest rank first: entries of lower
    /// priority, then entries of clients or requests that exceed their share. Returns `None` if preempting all of them would not suffice.
    fn victims(
        &self,
        entry: &Entry,
        mut available: Available,
        mut shares: Shares,
        changes: &[Change],
    ) -> Option<Vec<u64>> {
        let is_new = |it: &&Entry| changes.contains(&Change::Start(it.id));
        let mut candidates: Vec<&Entry> = self.running.iter().filter(|it| !is_new(it)).collect();
        candidates.sort_by_key(|it| (!entry.outranks(it), std::cmp::Reverse(it.rank())));
        let mut victims = Vec::new();
        for candidate in candidates {
            if available.holds(entry.need) {
                break;
            }
            if entry.outranks(candidate) || shares.may_take_slot(candidate.ticket, entry.ticket) {
                shares.remove(candidate.ticket);
                victims.push(candidate.id);
                available.add(self.ledger.reserved_by(candidate.id), self.widest_pass_without(&victims));
            }
        }
        available.holds(entry.need).then_some(victims)
    }

    fn widest_pass_without(&self, ids: &[u64]) -> u64 {
        let stay = self.running.iter().filter(|it| !ids.contains(&it.id));
        stay.map(|it| self.ledger.reserved_by(it.id).pass).fold(0, u64::max)
    }

    /// Returns a running sequence to the queue, where it retains its rank. It needs `need` bytes to restart; by default its current
    /// reservation.
    fn preempt(&mut self, id: u64, need: Option<Need>) {
        let Some(place) = self.running.iter().position(|it| it.id == id) else { return };
        let mut entry = self.running.remove(place);
        entry.need = need.unwrap_or_else(|| self.ledger.reserved_by(id));
        self.ledger.release(id);
        self.wait(entry);
    }

    /// Returns a running sequence to the queue regardless of its rank, for example after a failed pass.
    pub(super) fn requeue(&mut self, id: u64) {
        self.preempt(id, None);
    }

    /// Extends the reservation of a running sequence. If there is no memory, running sequences of lower rank are preempted, lowest first.
    /// If that would not suffice, the sequence itself is preempted. Returns the preempted sequences.
    pub(super) fn grow(&mut self, id: u64, more: Need) -> Vec<u64> {
        let Some(&entry) = self.running.iter().find(|it| it.id == id) else { return Vec::new() };
        let mut gone = Vec::new();
        let below = |it: &&Entry| it.rank() > entry.rank();
        let others: Vec<u64> = self.running.iter().filter(below).map(|it| it.id).collect();
        let mut available =
            Available { places: 1, bytes: self.ledger.free(), pass: self.ledger.widest_pass() };
        let widest = self.widest_pass_without(&others);
        let theirs = others.iter().map(|other| self.ledger.reserved_by(*other).own).sum();
        available.add(Need { own: theirs, pass: 0 }, widest);
        // Preempt no sequence if that would not free enough.
        let enough = available.holds(more);
        while !self.ledger.reserve(id, more) {
            let candidates = self.running.iter().filter(below).filter(|_| enough);
            let Some(last) = candidates.max_by_key(|it| it.rank()).map(|it| it.id) else {
                let held = self.ledger.reserved_by(id);
                let need = Need { own: held.own + more.own, pass: held.pass.max(more.pass) };
                self.preempt(id, Some(need));
                gone.push(id);
                break;
            };
            self.preempt(last, None);
            gone.push(last);
        }
        gone
    }

    /// Records the bytes that a running sequence uses. Returns the bytes beyond its reservation.
    pub(super) fn record_used(&mut self, id: u64, bytes: u64) -> u64 {
        self.ledger.record_used(id, bytes)
    }

    /// Removes an ended sequence from the queue or the running sequences.
    pub(in crate::engine) fn remove(&mut self, id: u64) {
        self.waiting.retain(|it| it.id != id);
        self.running.retain(|it| it.id != id);
        self.ledger.release(id);
    }
}

#[cfg(test)]
mod tests;
