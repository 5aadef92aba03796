//! Prefixes of token sequences and what is kept for each: a tree that finds the longest common beginning, and an order of use
//! that says what goes first. Invariant: pure; it sees ids, lengths and bytes, and what is kept is opaque to it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The root is never freed.
const ROOT: usize = 0;

/// Kept values by the tokens they stand for. An edge holds a run of tokens, so a search costs as much as the prompt is long, however
/// much is kept.
#[derive(Debug)]
pub(crate) struct PrefixTree<T> {
    nodes: Vec<Node<T>>,
    free: Vec<usize>,
    /// Entries by their last use.
    order: BTreeMap<u64, usize>,
    clock: Clock,
    bytes: u64,
}

/// Counts uses. Trees that share a clock can tell which of their entries was used longest ago.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock(Rc<Cell<u64>>);

impl Clock {
    fn tick(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

#[derive(Debug)]
struct Node<T> {
    /// The tokens from the parent to here; empty for the root alone.
    edge: Vec<u32>,
    parent: usize,
    /// By the first token of their edges.
    children: BTreeMap<u32, usize>,
    /// Tokens from the root to here.
    depth: usize,
    entry: Option<Entry<T>>,
    /// The shortest length that anything from here on can be cut to.
    shortest: usize,
}

#[derive(Debug)]
struct Entry<T> {
    kept: Kept<T>,
    /// Nothing else ever has it.
    id: u64,
    used: u64,
}

/// Something that is kept, and what it costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept<T> {
    /// What is kept.
    pub(crate) value: T,
    /// The bytes that it takes.
    pub(crate) bytes: u64,
    /// The shortest length it can be cut to: 0 for a cache of every position, its own length for one that cannot be cut.
    pub(crate) shortest: usize,
}

/// What a search found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Where to take it from, and the length to cut it to.
    pub(crate) hit: Option<Hit>,
    /// The tokens that something kept has in common with the prompt.
    pub(crate) common: usize,
    /// The token that is kept behind those where the prompt goes on differently.
    pub(crate) differs: Option<u32>,
    /// Nodes and tokens that were looked at.
    pub(crate) looked_at: usize,
}

/// An entry that a prompt may begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hit {
    node: usize,
    id: u64,
    /// The positions to take over; at least 1.
    pub(crate) length: usize,
}

/// A place in the tree: at a node, or on the edge that leads to it.
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
        Self { edge, parent, children: BTreeMap::new(), depth, entry: None, shortest: usize::MAX }
    }
}

impl<T> PrefixTree<T> {
    /// An empty tree whose entries are ordered by this clock.
    pub(crate) fn new(clock: Clock) -> Self {
        let root = Node::new(Vec::new(), ROOT, 0);
        Self { nodes: vec![root], free: Vec::new(), order: BTreeMap::new(), clock, bytes: 0 }
    }

    /// When the entry that was used longest ago was last used.
    pub(crate) fn oldest_use(&self) -> Option<u64> {
        self.order.first_key_value().map(|(used, _)| *used)
    }

    /// Bytes of all that is kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many values are kept.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The longest beginning of `prompt` that can be taken from something kept, and counts as a use of it. `allowed` says how much of
    /// a common beginning may be taken; it must not give more than it gets, nor less for more.
    pub(crate) fn find(&mut self, prompt: &[u32], allowed: impl Fn(usize) -> usize) -> Found {
        let (place, looked_at) = self.walk(prompt);
        let differs = self.differs(&place, prompt);
        let mut found = Found { hit: None, common: place.depth, differs, looked_at };
        if let Some((node, length)) = self.usable(&place, allowed) {
            found.hit = self.touch(self.cuttable_below(node), length);
        }
        found
    }

    /// The node with an entry below it that can be cut to the longest allowed part of the path to `place`, and that length.
    fn usable(&self, place: &Place, allowed: impl Fn(usize) -> usize) -> Option<(usize, usize)> {
        // Everything below a node shares the tokens up to it with the prompt; towards the root they become fewer.
        let (mut node, mut depth) = (place.node, place.depth);
        loop {
            let length = allowed(depth);
            if length == 0 {
                return None;
            }
            if self.nodes[node].shortest <= length {
                return Some((node, length));
            }
            if node == ROOT {
                return None;
            }
            node = self.nodes[node].parent;
            depth = self.nodes[node].depth;
        }
    }

    /// What a search has found, if it is still there.
    pub(crate) fn get(&self, hit: &Hit) -> Option<&T> {
        let entry = self.nodes.get(hit.node)?.entry.as_ref()?;
        (entry.id == hit.id).then_some(&entry.kept.value)
    }

    /// Something that begins with `tokens` and can be cut there, without counting as a use.
    pub(crate) fn peek(&self, tokens: &[u32]) -> Option<&T> {
        let (place, _) = self.walk(tokens);
        let is_there = place.depth == tokens.len() && self.nodes[place.node].shortest <= tokens.len();
        let entry = self.nodes[self.cuttable_below(place.node)].entry.as_ref();
        entry.filter(|_| is_there).map(|entry| &entry.kept.value)
    }

    /// Keeps a value for `tokens`. What it makes superfluous is given back: shorter entries that can be cut from it, or itself if it can be
    /// cut from one that is there.
    pub(crate) fn insert(&mut self, tokens: &[u32], mut kept: Kept<T>) -> Vec<T> {
        let (place, _) = self.walk(tokens);
        let is_there = place.depth == tokens.len() && self.nodes[place.node].shortest <= tokens.len();
        if tokens.is_empty() || is_there {
            return vec![kept.value];
        }
        kept.shortest = kept.shortest.min(tokens.len());
        let at = self.branch(&place);
        let node = self.grow(at, &tokens[place.depth..]);
        let superseded = self.superseded(node, kept.shortest);
        let now = self.clock.tick();
        self.order.insert(now, node);
        self.bytes += kept.bytes;
        self.nodes[node].entry = Some(Entry { kept, id: now, used: now });
        self.settle(node);
        superseded.into_iter().filter_map(|node| self.remove(node)).collect()
    }

    /// Takes out what was used longest ago.
    pub(crate) fn pop_oldest(&mut self) -> Option<T> {
        let (_, &node) = self.order.first_key_value()?;
        self.remove(node)
    }

    /// Follows `tokens` as far as the tree does; gives the nodes and tokens that were looked at, too.
    fn walk(&self, tokens: &[u32]) -> (Place, usize) {
        let (mut place, mut looked_at) = (Place { node: ROOT, depth: 0 }, 0);
        loop {
            looked_at += 1;
            let next = tokens.get(place.depth);
            let child = next.and_then(|token| self.nodes[place.node].children.get(token));
            let Some(&node) = child else { return (place, looked_at) };
            let edge = &self.nodes[node].edge;
            let pairs = edge.iter().zip(&tokens[place.depth..]);
            let common = pairs.inspect(|_| looked_at += 1).take_while(|(one, other)| one == other).count();
            place = Place { node, depth: place.depth + common };
            if common < edge.len() {
                return (place, looked_at);
            }
        }
    }

    fn differs(&self, place: &Place, prompt: &[u32]) -> Option<u32> {
        let node = &self.nodes[place.node];
        let behind = node.edge.len() - (node.depth - place.depth);
        let next = node.edge.get(behind).or_else(|| node.children.keys().next());
        next.copied().filter(|_| place.depth < prompt.len())
    }

    /// The entry from here on that can be cut the most.
    fn cuttable_below(&self, mut node: usize) -> usize {
        loop {
            let here = &self.nodes[node];
            if here.entry.as_ref().is_some_and(|entry| entry.kept.shortest == here.shortest) {
                return node;
            }
            let fits = |child: &&usize| self.nodes[**child].shortest == here.shortest;
            match here.children.values().find(fits) {
                Some(&child) => node = child,
                None => return node,
            }
        }
    }

    fn touch(&mut self, node: usize, length: usize) -> Option<Hit> {
        let now = self.clock.tick();
        let entry = self.nodes[node].entry.as_mut()?;
        self.order.remove(&entry.used);
        entry.used = now;
        self.order.insert(now, node);
        Some(Hit { node, id: entry.id, length })
    }

    /// A node at a place, for which an edge is cut in two if need be.
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
        self.nodes[middle].children.insert(first, place.node);
        self.nodes[middle].shortest = below;
        self.nodes[place.node].parent = middle;
        middle
    }

    /// The node that `edge` leads to from `parent`, where it branches off.
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

    /// Entries on the way to `node` that something with this `shortest` length makes superfluous.
    fn superseded(&self, node: usize, shortest: usize) -> Vec<usize> {
        let mut found = Vec::new();
        let mut above = self.nodes[node].parent;
        while above != ROOT && self.nodes[above].depth >= shortest {
            if self.nodes[above].entry.is_some() {
                found.push(above);
            }
            above = self.nodes[above].parent;
        }
        found
    }

    /// Takes out an entry, and the nodes that nobody needs without it.
    fn remove(&mut self, node: usize) -> Option<T> {
        let Entry { kept, used, .. } = self.nodes[node].entry.take()?;
        self.order.remove(&used);
        self.bytes -= kept.bytes;
        let mut node = node;
        while node != ROOT && self.nodes[node].entry.is_none() && self.nodes[node].children.is_empty() {
            let parent = self.nodes[node].parent;
            let first = self.nodes[node].edge[0];
            self.nodes[parent].children.remove(&first);
            self.clear(node);
            node = parent;
        }
        let node = self.join(node);
        self.settle(node);
        Some(kept.value)
    }

    fn clear(&mut self, node: usize) {
        self.nodes[node] = Node::new(Vec::new(), ROOT, 0);
        self.free.push(node);
    }

    /// A node without an entry and with one child becomes part of the child's edge; gives the lowest node that has changed.
    fn join(&mut self, node: usize) -> usize {
        let Node { children, parent, entry, .. } = &self.nodes[node];
        let only = children.values().next().filter(|_| children.len() == 1 && entry.is_none());
        let (Some(&child), parent, true) = (only, *parent, node != ROOT) else { return node };
        let mut edge = std::mem::take(&mut self.nodes[node].edge);
        self.nodes[parent].children.insert(edge[0], child);
        edge.append(&mut self.nodes[child].edge);
        (self.nodes[child].edge, self.nodes[child].parent) = (edge, parent);
        self.clear(node);
        parent
    }

    /// Works out, from `node` upwards as far as it changes, how far things can be cut.
    fn settle(&mut self, mut node: usize) {
        loop {
            let here = &self.nodes[node];
            let own = here.entry.as_ref().map_or(usize::MAX, |entry| entry.kept.shortest);
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
