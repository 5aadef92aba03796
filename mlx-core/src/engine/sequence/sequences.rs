//! The sequences of an engine, by id.

use std::collections::BTreeMap;

use super::Sequence;

/// All sequences that run or wait, in the order of arrival.
#[derive(Default)]
pub(in crate::engine) struct Sequences(BTreeMap<u64, Sequence>);

impl Sequences {
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::engine) fn insert(&mut self, id: u64, sequence: Sequence) {
        self.0.insert(id, sequence);
    }

    /// Returns the sequence that a plan names by `id`. Panics if it does not exist.
    pub(in crate::engine) fn get(&self, id: u64) -> &Sequence {
        self.0.get(&id).expect("plans name sequences that exist")
    }

    /// Like [`get`](Self::get), mutably.
    pub(in crate::engine) fn get_mut(&mut self, id: u64) -> &mut Sequence {
        self.0.get_mut(&id).expect("plans name sequences that exist")
    }

    /// Returns a sequence that may have ended.
    pub(in crate::engine) fn find(&self, id: u64) -> Option<&Sequence> {
        self.0.get(&id)
    }

    /// Like [`find`](Self::find), mutably.
    pub(in crate::engine) fn find_mut(&mut self, id: u64) -> Option<&mut Sequence> {
        self.0.get_mut(&id)
    }

    pub(in crate::engine) fn remove(&mut self, id: u64) -> Sequence {
        self.0.remove(&id).expect("a sequence ends once")
    }

    /// Returns the ids of the running sequences.
    pub(in crate::engine) fn running(&self) -> Vec<u64> {
        self.iter().filter(|(_, sequence)| sequence.run.is_some()).map(|(id, _)| id).collect()
    }

    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = (u64, &Sequence)> {
        self.0.iter().map(|(&id, sequence)| (id, sequence))
    }

    /// Iterates over all sequences, mutably.
    pub(in crate::engine) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.0.values_mut()
    }

    /// Returns the sequences with these ids. The ids must be in ascending order, and all must exist.
    pub(in crate::engine) fn several_mut<'a>(&'a mut self, ids: &'a [u64]) -> Vec<&'a mut Sequence> {
        let chosen = self.0.iter_mut().filter(|(id, _)| ids.binary_search(id).is_ok());
        let chosen: Vec<_> = chosen.map(|(_, sequence)| sequence).collect();
        assert_eq!(chosen.len(), ids.len(), "plans name sequences that exist");
        chosen
    }
}
