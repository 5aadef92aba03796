//! Lengths that a value can go back to, although it cannot be cut anywhere: each is noted on the edge that it lies on.

use super::{Kept, Place, PrefixTree, ROOT};

impl<T> PrefixTree<T> {
    /// Lets `thin` drop a stop of the least recently used entry; it returns the length and the bytes of what it dropped, if
    /// anything. Returns whether it did.
    pub(crate) fn thin_oldest(&mut self, thin: impl FnOnce(&mut T) -> Option<(usize, u64)>) -> bool {
        let Some((_, &node)) = self.order.first_key_value() else { return false };
        let Some(entry) = self.nodes[node].entry.as_mut() else { return false };
        let Some((stop, bytes)) = thin(&mut entry.kept.value) else { return false };
        entry.kept.bytes -= bytes;
        self.bytes -= bytes;
        if let Some(place) = entry.kept.stops.iter().position(|&it| it == stop) {
            entry.kept.stops.remove(place);
            self.forget(node, stop);
        }
        true
    }

    /// The node at or above `node` on whose edge this length is.
    fn above(&self, mut node: usize, length: usize) -> usize {
        while self.nodes[self.nodes[node].parent].depth >= length {
            node = self.nodes[node].parent;
        }
        node
    }

    /// Adds a stop of the entry of `node`.
    pub(super) fn note(&mut self, node: usize, stop: usize) {
        let above = self.above(node, stop);
        self.nodes[above].stops.entry(stop).or_default().push(node);
    }

    /// Removes a stop of the entry of `node`.
    pub(super) fn forget(&mut self, node: usize, stop: usize) {
        let above = self.above(node, stop);
        let stops = &mut self.nodes[above].stops;
        if let Some(entries) = stops.get_mut(&stop) {
            entries.retain(|&entry| entry != node);
            if entries.is_empty() {
                stops.remove(&stop);
            }
        }
    }

    /// A value that starts with `tokens` and can be cut to them.
    pub(super) fn covers(&self, place: &Place, tokens: &[u32]) -> bool {
        let node = &self.nodes[place.node];
        let length = tokens.len();
        place.depth == length && (node.shortest <= length || node.stops.contains_key(&length))
    }

    /// Entries on the path to `node` that this value makes redundant.
    pub(super) fn superseded<V>(&self, node: usize, kept: &Kept<V>) -> Vec<usize> {
        let mut found = Vec::new();
        let mut above = self.nodes[node].parent;
        while above != ROOT {
            if self.nodes[above].entry.is_some() && kept.goes_back_to(self.nodes[above].depth) {
                found.push(above);
            }
            above = self.nodes[above].parent;
        }
        found
    }
}
