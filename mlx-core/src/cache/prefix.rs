//! A radix tree of token sequences with a value for each. It finds the longest common prefix and evicts the least recently used value.
//! Invariant: pure. It sees ids, lengths and bytes; values are opaque.

mod restore_points;
mod walk;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

#[cfg(test)]
pub(crate) use walk::visited_tokens;

/// The root is never freed.
const ROOT: usize = 0;

/// An unused entry becomes stale after this many insertions and uses of others. Stale entries are dropped even if memory is free.
const STALE_AFTER: u64 = 512;

/// Values by token sequence. An edge holds a run of tokens, so the cost of a search depends only on the length of the prompt.
#[derive(Debug)]
pub(crate) struct PrefixTree<T> {
    nodes: Vec<Node<T>>,
    free: Vec<usize>,
    /// Entries by their last use.
    order: BTreeMap<u64, usize>,
    clock: Clock,
    bytes: u64,
}

/// A counter of uses. Trees that share a clock have a common order of use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock(Rc<Cell<u64>>);

impl Clock {
    fn now(&self) -> u64 {
        self.0.get()
    }

    fn tick(&self) -> u64 {
        self.0.set(self.now() + 1);
        self.now()
    }
}

#[derive(Debug)]
struct Node<T> {
    /// The tokens from the parent to this node; empty for the root only.
    edge: Vec<u32>,
    parent: usize,
    /// By the first token of their edges.
    children: BTreeMap<u32, usize>,
    /// The number of tokens from the root.
    depth: usize,
    stored: Option<Stored<T>>,
    /// The shortest length to which a value at or below this node can be truncated.
    shortest: usize,
    /// Restore points on the edge, with the nodes of their entries: shorter lengths to which values at or below this node can go back.
    restore_points: BTreeMap<usize, Vec<usize>>,
}

#[derive(Debug)]
struct Stored<T> {
    entry: Entry<T>,
    /// A unique number that is never reused.
    id: u64,
    used: u64,
}

/// A value and its cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry<T> {
    /// The value.
    pub(crate) value: T,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// The shortest length to which it can be truncated: 0 for a cache of every position, its own length if it cannot be truncated.
    pub(crate) shortest: usize,
    /// Restore points: shorter lengths to which it can go back, ascending.
    pub(crate) restore_points: Vec<usize>,
}

impl<T> Entry<T> {
    fn goes_back_to(&self, length: usize) -> bool {
        length >= self.shortest || self.restore_points.contains(&length)
    }
}

/// The result of a search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SearchResult {
    /// The entry and the length to which it must be truncated.
    pub(crate) matched: Option<Match>,
    /// The length of the longest common prefix with any entry.
    pub(crate) common: usize,
    /// The point where the prompt diverges from the tree before its end: the tree's token there, and the length of an entry with it.
    pub(crate) divergence: Option<(u32, usize)>,
    /// The number of nodes and tokens visited.
    pub(crate) visited: usize,
}

/// An entry that shares a prefix with a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Match {
    node: usize,
    id: u64,
    /// The number of positions to reuse; at least 1.
    pub(crate) length: usize,
}

/// A position in the tree: at a node, or on the edge to it.
struct Place {
    node: usize,
    depth: usize,
}

impl<T> Default for PrefixTree<T> {
    fn default() -> Self {
        Self::new(Clock::default())
    }
}

impl<T> Node<T> {
    fn new(edge: Vec<u32>, parent: usize, depth: usize) -> Self {
        Self {
            edge,
            parent,
            children: BTreeMap::new(),
            depth,
            stored: None,
            shortest: usize::MAX,
            restore_points: BTreeMap::new(),
        }
    }
}

impl<T> PrefixTree<T> {
    /// Creates an empty tree with entries ordered by this clock.
    pub(crate) fn new(clock: Clock) -> Self {
        let root = Node::new(Vec::new(), ROOT, 0);
        Self { nodes: vec![root], free: Vec::new(), order: BTreeMap::new(), clock, bytes: 0 }
    }

    /// The time of use of the least recently used entry.
    pub(crate) fn oldest_use(&self) -> Option<u64> {
        self.order.first_key_value().map(|(used, _)| *used)
    }

    /// The bytes of all values.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Finds the longest reusable prefix of `prompt` and counts as a use of its entry. `allowed` maps the length of a common prefix to the
    /// reusable length. It must be monotonic and never exceed its argument.
    pub(crate) fn find(&mut self, prompt: &[u32], allowed: impl Fn(usize) -> usize) -> SearchResult {
        let (place, visited) = self.walk(prompt);
        let differs = self.differs(&place, prompt);
        let mut found = SearchResult { matched: None, common: place.depth, divergence: differs, visited };
        if let Some((stored, length)) = self.usable(&place, allowed) {
            found.matched = self.touch(stored, length);
        }
        found
    }

    /// Returns the entry that can be truncated to the longest allowed prefix of the path to `place`, with the length of this prefix.
    fn usable(&self, place: &Place, allowed: impl Fn(usize) -> usize) -> Option<(usize, usize)> {
        // All entries below a node share its tokens with the prompt. Each step towards the root shortens the shared prefix.
        let (mut node, mut depth) = (place.node, place.depth);
        loop {
            let length = allowed(depth);
            if length == 0 {
                return None;
            }
            let here = &self.nodes[node];
            if here.shortest <= length {
                return Some((self.cuttable_below(node), length));
            }
            let mut restore_points = here.restore_points.range(..=length).rev();
            if let Some((&point, entries)) = restore_points.find(|(point, _)| allowed(**point) == **point) {
                return Some((*entries.last()?, point));
            }
            if node == ROOT {
                return None;
            }
            node = self.nodes[node].parent;
            depth = self.nodes[node].depth;
        }
    }

    /// Returns the value of a match if it still exists.
    pub(crate) fn get(&self, matched: &Match) -> Option<&T> {
        let stored = self.nodes.get(matched.node)?.stored.as_ref()?;
        (stored.id == matched.id).then_some(&stored.entry.value)
    }

    /// Finds an entry that starts with `tokens`. Does not count as a use.
    pub(crate) fn locate(&self, tokens: &[u32]) -> Option<Match> {
        let (place, _) = self.walk(tokens);
        let node = self.cuttable_below(place.node);
        let stored = self.nodes[node].stored.as_ref().filter(|_| place.depth == tokens.len())?;
        Some(Match { node, id: stored.id, length: tokens.len() })
    }

    /// Inserts a value for `tokens`. Returns the values that become redundant: shorter entries to which it can be truncated. Returns the
    /// value itself if an existing entry can be truncated to it.
    pub(crate) fn insert(&mut self, tokens: &[u32], mut entry: Entry<T>) -> Vec<T> {
        let (place, _) = self.walk(tokens);
        if tokens.is_empty() || self.covers(&place, tokens) {
            return vec![entry.value];
        }
        entry.shortest = entry.shortest.min(tokens.len());
        entry.restore_points.retain(|&point| point > 0 && point < entry.shortest);
        let at = self.branch(&place);
        let node = self.grow(at, &tokens[place.depth..]);
        let superseded = self.superseded(node, &entry);
        for &point in &entry.restore_points {
            self.add_restore_point(node, point);
        }
        let now = self.clock.tick();
        self.order.insert(now, node);
        self.bytes += entry.bytes;
        self.nodes[node].stored = Some(Stored { entry, id: now, used: now });
        self.update_shortest(node);
        superseded.into_iter().filter_map(|node| self.remove(node)).collect()
    }

    /// Removes the least recently used entry.
    pub(crate) fn pop_oldest(&mut self) -> Option<T> {
        let (_, &node) = self.order.first_key_value()?;
        self.remove(node)
    }

    /// Removes an entry that is stale by the clock, if there is one.
    pub(crate) fn pop_stale(&mut self) -> Option<T> {
        let is_stale = self.oldest_use().is_some_and(|used| used + STALE_AFTER < self.clock.now());
        is_stale.then(|| self.pop_oldest()).flatten()
    }

    fn differs(&self, place: &Place, prompt: &[u32]) -> Option<(u32, usize)> {
        let node = &self.nodes[place.node];
        let behind = node.edge.len() - (node.depth - place.depth);
        let on_edge = node.edge.get(behind).map(|token| (*token, place.node));
        let child = || node.children.iter().next().map(|(token, child)| (*token, *child));
        let (token, node) = on_edge.or_else(child).filter(|_| place.depth < prompt.len())?;
        Some((token, self.nodes[self.cuttable_below(node)].depth))
    }

    /// Returns the entry at or below this node that can be truncated to the shortest length.
    fn cuttable_below(&self, mut node: usize) -> usize {
        loop {
            let here = &self.nodes[node];
            if here.stored.as_ref().is_some_and(|stored| stored.entry.shortest == here.shortest) {
                return node;
            }
            let fits = |child: &&usize| self.nodes[**child].shortest == here.shortest;
            match here.children.values().find(fits) {
                Some(&child) => node = child,
                None => return node,
            }
        }
    }

    fn touch(&mut self, node: usize, length: usize) -> Option<Match> {
        let now = self.clock.tick();
        let stored = self.nodes[node].stored.as_mut()?;
        self.order.remove(&stored.used);
        stored.used = now;
        self.order.insert(now, node);
        Some(Match { node, id: stored.id, length })
    }

    /// Returns the node at a place. Splits an edge if needed.
    fn branch(&mut self, place: &Place) -> usize {
        let Node { depth, parent, edge, .. } = &self.nodes[place.node];
        if place.depth == *depth {
            return place.node;
        }
        let (parent, cut) = (*parent, edge.len() - (depth - place.depth));
        let tail = self.nodes[place.node].edge.split_off(cut);
        let head = std::mem::replace(&mut self.nodes[place.node].edge, tail);
        let middle = self.add(head, parent);
        let (first, below) = (self.nodes[place.node].edge[0], self.nodes[place.node].shortest);
        let behind = self.nodes[place.node].restore_points.split_off(&(place.depth + 1));
        self.nodes[middle].restore_points =
            std::mem::replace(&mut self.nodes[place.node].restore_points, behind);
        self.nodes[middle].children.insert(first, place.node);
        self.nodes[middle].shortest = below;
        self.nodes[place.node].parent = middle;
        middle
    }

    /// Adds a node below `parent` with this edge. Returns `parent` if the edge is empty.
    fn grow(&mut self, parent: usize, edge: &[u32]) -> usize {
        if edge.is_empty() { parent } else { self.add(edge.to_vec(), parent) }
    }

    fn add(&mut self, edge: Vec<u32>, parent: usize) -> usize {
        let first = edge[0];
        let node = Node::new(edge, parent, 0);
        let place = self.free.pop().unwrap_or(self.nodes.len());
        if place == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[place] = node;
        }
        self.nodes[place].depth = self.nodes[parent].depth + self.nodes[place].edge.len();
        self.nodes[parent].children.insert(first, place);
        place
    }

    /// Removes an entry and the nodes that become unused.
    fn remove(&mut self, node: usize) -> Option<T> {
        let Stored { entry, used, .. } = self.nodes[node].stored.take()?;
        self.order.remove(&used);
        self.bytes -= entry.bytes;
        for &point in &entry.restore_points {
            self.remove_restore_point(node, point);
        }
        let mut node = node;
        while node != ROOT && self.nodes[node].stored.is_none() && self.nodes[node].children.is_empty() {
            let parent = self.nodes[node].parent;
            let first = self.nodes[node].edge[0];
            self.nodes[parent].children.remove(&first);
            self.clear(node);
            node = parent;
        }
        let node = self.join(node);
        self.update_shortest(node);
        Some(entry.value)
    }

    fn clear(&mut self, node: usize) {
        self.nodes[node] = Node::new(Vec::new(), ROOT, 0);
        self.free.push(node);
    }

    /// Merges a node that has one child and no entry into the edge of its child. Returns the lowest changed node.
    fn join(&mut self, node: usize) -> usize {
        let Node { children, parent, stored, .. } = &self.nodes[node];
        let only = children.values().next().filter(|_| children.len() == 1 && stored.is_none());
        let (Some(&child), parent, true) = (only, *parent, node != ROOT) else { return node };
        let mut edge = std::mem::take(&mut self.nodes[node].edge);
        let mut restore_points = std::mem::take(&mut self.nodes[node].restore_points);
        self.nodes[child].restore_points.append(&mut restore_points);
        self.nodes[parent].children.insert(edge[0], child);
        edge.append(&mut self.nodes[child].edge);
        (self.nodes[child].edge, self.nodes[child].parent) = (edge, parent);
        self.clear(node);
        parent
    }

    /// Updates `shortest` from `node` upwards until it no longer changes.
    fn update_shortest(&mut self, mut node: usize) {
        loop {
            let here = &self.nodes[node];
            let own = here.stored.as_ref().map_or(usize::MAX, |stored| stored.entry.shortest);
            let below = here.children.values().map(|&child| self.nodes[child].shortest);
            let shortest = below.fold(own, usize::min);
            if node == ROOT || here.shortest == shortest {
                self.nodes[node].shortest = shortest;
                return;
            }
            let parent = here.parent;
            self.nodes[node].shortest = shortest;
            node = parent;
        }
    }
}

#[cfg(test)]
mod tests;
