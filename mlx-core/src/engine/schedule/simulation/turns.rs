//! The simulation's own computation of the sequence that starts next and of the preempted ones.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Simulation;
use super::request::{Sequence, need, together};
use crate::engine::client::Client;
use crate::engine::schedule::plan::Changes;

impl Simulation {
    /// Returns true if, without the sequences in `gone`, the group of `own` has no slot and another sequence of the group of `other` has
    /// one.
    pub(super) fn may_take(&self, other: &Sequence, own: &Sequence, changes: &Changes, gone: &[u64]) -> bool {
        let stays = |it: &&Sequence| (it.runs || changes.preempt.contains(&it.id)) && !gone.contains(&it.id);
        let starts = |it: &&Sequence| changes.admit.contains(&it.id);
        let like = |it: &Sequence| it.id != other.id && it.shares_with(other, own);
        let has_some = self.sequences.values().filter(stays).any(|it| it.shares_with(own, other));
        !has_some && self.sequences.values().filter(|it| stays(it) || starts(it)).any(like)
    }

    /// Returns true if `one` fits after `victims` are preempted.
    pub(super) fn has_room(&self, one: &Sequence, victims: &[u64]) -> bool {
        let stay = self.which(|it| it.runs && !victims.contains(&it.id));
        let needs = stay.iter().map(|id| need(self.sequences[id].reserved)).chain([need(one.reserved)]);
        stay.len() < self.max_running && together(needs) <= self.budget
    }

    /// Returns the sequence that is next in order: of the first sequences of all clients, the one with the longest wait since its client
    /// last took a slot.
    pub(super) fn next(&self, preempted: &[u64]) -> Option<&Sequence> {
        let waits = |it: &&Sequence| !it.runs && !preempted.contains(&it.id);
        let mut firsts: BTreeMap<Client, &Sequence> = BTreeMap::new();
        for one in self.sequences.values().filter(waits) {
            let first = firsts.entry(one.ticket.client).or_insert(one);
            *first = if one.rank < first.rank { one } else { first };
        }
        let last =
            |it: &Sequence| self.last_served.get(&it.ticket.client).map(|last| *last + priority_delay(it));
        firsts.into_values().min_by_key(|it| (last(it).unwrap_or_default().max(it.rank.0), it.rank))
    }
}

/// Returns the delay that a priority below the highest adds to the time of arrival.
pub(super) fn priority_delay(one: &Sequence) -> Duration {
    Duration::from_secs([40, 10, 0][one.ticket.priority as usize])
}
