//! Checkpoints: lengths that a state can roll back to although some of its layers cannot be truncated. Invariant: the choice of the
//! checkpoints to evict depends on lengths only.

use mlx_rs::Array;

use super::layer::LayerCheckpoint;

/// The number of newest checkpoints that are never evicted. A chat template often rewrites the text around the last one in the next turn.
const NEWEST: usize = 2;

/// Among older checkpoints, one is kept per this many positions.
const SPACING: usize = 4096;

/// The maximum number of checkpoints of a sequence.
const MAX_CHECKPOINTS: usize = 32;

/// A length that a state can roll back to.
pub(super) struct Checkpoint {
    pub(super) length: usize,
    pub(super) layers: Vec<LayerCheckpoint>,
    /// The bytes of its layers.
    bytes: usize,
    /// True if it stays until memory is short, regardless of its distance from others.
    marked: bool,
}

/// Checkpoints in order of length, with the sum of their bytes.
#[derive(Default)]
pub(super) struct Checkpoints {
    all: Vec<Checkpoint>,
    bytes: usize,
}

impl Checkpoints {
    /// Appends a checkpoint. If one exists at this length, it stays, and becomes marked if the new one is. Then drops
    /// the checkpoint just before the newest [`NEWEST`], unless it is marked or at least [`SPACING`] positions after its predecessor.
    pub(super) fn push(&mut self, length: usize, layers: Vec<LayerCheckpoint>, marked: bool) {
        if let Some(last) = self.all.last_mut().filter(|last| last.length == length) {
            last.marked |= marked;
        } else {
            let bytes = layers.iter().map(LayerCheckpoint::bytes).sum();
            self.bytes += bytes;
            self.all.push(Checkpoint { length, layers, bytes, marked });
        }
        if let Some(place) = self.all.len().checked_sub(NEWEST + 1) {
            let before = place.checked_sub(1).map_or(0, |before| self.all[before].length);
            if !self.all[place].marked && self.all[place].length - before < SPACING {
                self.remove(place);
            }
        }
        if self.all.len() > MAX_CHECKPOINTS {
            self.evict_one();
        }
    }

    /// Evicts the checkpoint whose removal leaves the smallest gap, but never the newest. Returns its length and bytes.
    pub(super) fn evict_one(&mut self) -> Option<(usize, usize)> {
        let gap = |place: usize| {
            let before = place.checked_sub(1).map_or(0, |before| self.all[before].length);
            self.all[place + 1].length - before
        };
        let place = (0..self.all.len().checked_sub(1)?).min_by_key(|&place| gap(place))?;
        let gone = self.remove(place);
        Some((gone.length, gone.bytes))
    }

    fn remove(&mut self, place: usize) -> Checkpoint {
        let gone = self.all.remove(place);
        self.bytes -= gone.bytes;
        gone
    }

    /// Removes all checkpoints.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Removes the checkpoints after `length`.
    pub(super) fn truncate(&mut self, length: usize) {
        while self.all.last().is_some_and(|last| last.length > length) {
            self.remove(self.all.len() - 1);
        }
    }

    /// Returns the last checkpoint at or before `length`.
    pub(super) fn last_at_or_before(&self, length: usize) -> Option<&Checkpoint> {
        self.all.iter().rfind(|checkpoint| checkpoint.length <= length)
    }

    /// Returns the checkpoints up to `length`, sharing their arrays. None of them is marked.
    pub(super) fn until(&self, length: usize) -> Self {
        let copy = |it: &Checkpoint| Checkpoint { layers: it.layers.clone(), marked: false, ..*it };
        let all: Vec<Checkpoint> = self.all.iter().filter(|it| it.length <= length).map(copy).collect();
        Self { bytes: all.iter().map(|it| it.bytes).sum(), all }
    }

    /// The lengths of the checkpoints.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.all.iter().map(|checkpoint| checkpoint.length)
    }

    /// The sum of their bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = Array> {
        self.all.iter().flat_map(|it| &it.layers).flat_map(LayerCheckpoint::arrays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(of: &Checkpoints) -> Vec<usize> {
        of.lengths().collect()
    }

    /// A long prompt in chunks of 512 with a mark in the middle.
    fn prompt() -> Checkpoints {
        let mut all = Checkpoints::default();
        for chunk in 1..=40 {
            all.push(chunk * 512, Vec::new(), chunk == 21);
        }
        all
    }

    #[test]
    fn the_newest_and_marked_ones_stay_and_one_in_four_thousand_positions() {
        assert_eq!(lengths(&prompt()), [4096, 8192, 10_752, 14_848, 18_944, 19_968, 20_480]);
    }

    #[test]
    fn the_smallest_gap_closes_first_and_the_newest_goes_last() {
        let mut all = prompt();
        assert_eq!(all.evict_one().map(|gone| gone.0), Some(19_968));
        assert_eq!(all.evict_one().map(|gone| gone.0), Some(18_944));
        assert_eq!(all.evict_one().map(|gone| gone.0), Some(8192));
        while all.evict_one().is_some() {}
        assert_eq!(lengths(&all), [20_480]);
    }

    #[test]
    fn there_are_never_too_many() {
        let mut all = Checkpoints::default();
        for place in 0..500 {
            all.push(place * 5000, Vec::new(), true);
        }
        assert_eq!(lengths(&all).len(), MAX_CHECKPOINTS);
        assert_eq!(all.last_at_or_before(499 * 5000 + 1).map(|it| it.length), Some(499 * 5000));
        all.truncate(0);
        assert_eq!(lengths(&all), [0; 0]);
    }
}
