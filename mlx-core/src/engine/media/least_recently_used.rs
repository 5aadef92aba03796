//! A cache that evicts its least recently used values first. No operation iterates over all values.

use std::collections::BTreeMap;

/// A cache of values with their sizes, by key.
pub(super) struct LeastRecentlyUsed<K, V> {
    entries: BTreeMap<K, Entry<V>>,
    /// The keys in the order of their last use.
    by_use: BTreeMap<u64, K>,
    bytes: u64,
    uses: u64,
}

struct Entry<V> {
    value: V,
    bytes: u64,
    used: u64,
}

impl<K, V> Default for LeastRecentlyUsed<K, V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), by_use: BTreeMap::new(), bytes: 0, uses: 0 }
    }
}

impl<K: Ord + Copy, V> LeastRecentlyUsed<K, V> {
    /// Returns the value of a key. This counts as a use.
    pub(super) fn get(&mut self, key: &K) -> Option<&V> {
        let entry = self.entries.get_mut(key)?;
        self.uses += 1;
        self.by_use.remove(&entry.used);
        entry.used = self.uses;
        self.by_use.insert(entry.used, *key);
        Some(&entry.value)
    }

    /// Stores a value of `bytes` bytes, replacing an older one.
    pub(super) fn insert(&mut self, key: K, value: V, bytes: u64) {
        self.remove(&key);
        self.uses += 1;
        self.by_use.insert(self.uses, key);
        self.bytes += bytes;
        self.entries.insert(key, Entry { value, bytes, used: self.uses });
    }

    /// Returns the bytes of all values.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Evicts the least recently used values until the others take at most `bytes` bytes.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        while self.bytes > bytes
            && let Some((_, key)) = self.by_use.pop_first()
        {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some(entry) = self.entries.remove(key) {
            self.by_use.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_used_longest_ago_go_first() {
        let mut kept = LeastRecentlyUsed::default();
        for (key, bytes) in [(1, 10), (2, 20), (3, 30), (4, 40)] {
            kept.insert(key, 'x', bytes);
        }
        assert_eq!((kept.get(&1).copied(), kept.get(&5).copied(), kept.bytes()), (Some('x'), None, 100));
        kept.shrink_to(80);
        assert_eq!((kept.get(&2).copied(), kept.bytes()), (None, 80));
        kept.shrink_to(79);
        assert_eq!((kept.get(&3).copied(), kept.bytes()), (None, 50));
        kept.insert(4, 'y', 5);
        assert_eq!((kept.get(&4).copied(), kept.bytes()), (Some('y'), 15));
        kept.shrink_to(14);
        assert_eq!((kept.get(&1).copied(), kept.get(&4).copied(), kept.bytes()), (None, Some('y'), 5));
        kept.shrink_to(0);
        assert_eq!((kept.get(&4).copied(), kept.bytes()), (None, 0));
        assert!(kept.entries.is_empty() && kept.by_use.is_empty());
    }
}
