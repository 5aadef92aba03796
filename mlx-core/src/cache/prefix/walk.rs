//! The search of the tree from the root along the tokens of a prompt.

#[cfg(test)]
use std::cell::Cell;

use super::{Place, PrefixTree, ROOT};

impl<T> PrefixTree<T> {
    /// Follows `tokens` as far as possible. Also returns the number of nodes and tokens visited.
    pub(super) fn walk(&self, tokens: &[u32]) -> (Place, usize) {
        let walked = self.follow(tokens);
        #[cfg(test)]
        VISITED.with(|visited| visited.set(visited.get() + walked.1));
        walked
    }

    fn follow(&self, tokens: &[u32]) -> (Place, usize) {
        let (mut place, mut visited) = (Place { node: ROOT, depth: 0 }, 0);
        loop {
            visited += 1;
            let next = tokens.get(place.depth);
            let child = next.and_then(|token| self.nodes[place.node].children.get(token));
            let Some(&node) = child else { return (place, visited) };
            let edge = &self.nodes[node].edge;
            let pairs = edge.iter().zip(&tokens[place.depth..]);
            let common = pairs.inspect(|_| visited += 1).take_while(|(one, other)| one == other).count();
            place = Place { node, depth: place.depth + common };
            if common < edge.len() {
                return (place, visited);
            }
        }
    }
}

#[cfg(test)]
thread_local! {
    static VISITED: Cell<usize> = const { Cell::new(0) };
}

/// The number of nodes and tokens that searches on this thread have visited.
#[cfg(test)]
pub(crate) fn visited_tokens() -> usize {
    VISITED.with(Cell::get)
}
