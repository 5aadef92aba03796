//! Restore points: lengths to which a value can go back although it cannot be truncated anywhere. Each is recorded on its edge.

use super::{Entry, Place, PrefixTree, ROOT};

impl<T> PrefixTree<T> {
    /// Calls `evict` to drop a restore point of the least recently used entry. `evict` returns the length and the bytes of the dropped point, if
    /// any. Returns true if one was dropped.
    pub(crate) fn evict_restore_point(&mut self, evict: impl FnOnce(&mut T) -> Option<(usize, u64)>) -> bool {
        let Some((_, &node)) = self.order.first_key_value() else { return false };
        let Some(stored) = self.nodes[node].stored.as_mut() else { return false };
        let Some((point, bytes)) = evict(&mut stored.entry.value) else { return false };
        stored.entry.bytes -= bytes;
        self.bytes -= bytes;
        if let Some(place) = stored.entry.restore_points.iter().position(|&it| it == point) {
            stored.entry.restore_points.remove(place);
            self.remove_restore_point(node, point);
        }
        true
    }

    /// Returns the node at or above `node` with this length on its edge.
    fn above(&self, mut node: usize, length: usize) -> usize {
        while self.nodes[self.nodes[node].parent].depth >= length {
            node = self.nodes[node].parent;
        }
        node
    }

    /// Adds a restore point of the entry of `node`.
    pub(super) fn add_restore_point(&mut self, node: usize, point: usize) {
        let above = self.above(node, point);
        self.nodes[above].restore_points.entry(point).or_default().push(node);
    }

    /// Removes a restore point of the entry of `node`.
    pub(super) fn remove_restore_point(&mut self, node: usize, point: usize) {
        let above = self.above(node, point);
        let restore_points = &mut self.nodes[above].restore_points;
        if let Some(entries) = restore_points.get_mut(&point) {
            entries.retain(|&stored| stored != node);
            if entries.is_empty() {
                restore_points.remove(&point);
            }
        }
    }

    /// Returns true if an entry that starts with `tokens` can go back to them.
    pub(super) fn covers(&self, place: &Place, tokens: &[u32]) -> bool {
        let node = &self.nodes[place.node];
        let length = tokens.len();
        place.depth == length && (node.shortest <= length || node.restore_points.contains_key(&length))
    }

    /// Returns the entries on the path to `node` that this value makes redundant.
    pub(super) fn superseded<V>(&self, node: usize, entry: &Entry<V>) -> Vec<usize> {
        let mut found = Vec::new();
        let mut above = self.nodes[node].parent;
        while above != ROOT {
            if self.nodes[above].stored.is_some() && entry.goes_back_to(self.nodes[above].depth) {
                found.push(above);
            }
            above = self.nodes[above].parent;
        }
        found
    }
}
