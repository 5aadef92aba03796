//! Compares the prefix tree with a list that is searched linearly.

use proptest::prelude::*;

use super::*;

impl<T> PrefixTree<T> {
    /// Iterates over the values with their tokens, most recently used first.
    fn iter(&self) -> impl Iterator<Item = (Vec<u32>, &T)> {
        self.order.values().rev().filter_map(|&node| {
            let stored = self.nodes[node].stored.as_ref()?;
            Some((self.tokens(node), &stored.entry.value))
        })
    }

    fn tokens(&self, mut node: usize) -> Vec<u32> {
        let mut edges = Vec::new();
        while node != ROOT {
            edges.push(self.nodes[node].edge.as_slice());
            node = self.nodes[node].parent;
        }
        edges.into_iter().rev().flatten().copied().collect()
    }
}

/// The entries, most recently used last.
#[derive(Default)]
struct Naive(Vec<(Vec<u32>, Entry<u64>)>);

impl Naive {
    fn insert(&mut self, tokens: &[u32], kept: &Entry<u64>) -> Vec<u64> {
        let length = tokens.len();
        let covers =
            |(other, it): &(Vec<u32>, Entry<u64>)| other.starts_with(tokens) && it.goes_back_to(length);
        if length == 0 || self.0.iter().any(covers) {
            return vec![kept.value];
        }
        let kept = &limited(kept, length);
        let superfluous = |other: &Vec<u32>| tokens.starts_with(other) && kept.goes_back_to(other.len());
        let gone = self.0.iter().filter(|it| superfluous(&it.0)).map(|it| it.1.value).collect();
        self.0.retain(|it| !superfluous(&it.0));
        self.0.push((tokens.to_vec(), kept.clone()));
        gone
    }

    /// Returns the value, the common length and the reusable length of each entry for a prompt.
    fn candidates(&self, prompt: &[u32], allowed: impl Fn(usize) -> usize) -> Vec<(u64, usize, usize)> {
        let look = |(tokens, kept): &(Vec<u32>, Entry<u64>)| {
            let common = tokens.iter().zip(prompt).take_while(|(one, other)| one == other).count();
            let length = allowed(common);
            let stop =
                kept.restore_points.iter().copied().rfind(|&stop| stop <= common && allowed(stop) == stop);
            (kept.value, common, if length >= kept.shortest { length } else { stop.unwrap_or(0) })
        };
        self.0.iter().map(look).collect()
    }

    fn touch(&mut self, value: u64) {
        let place = self.0.iter().position(|it| it.1.value == value).expect("it is kept");
        let stored = self.0.remove(place);
        self.0.push(stored);
    }
}

/// Returns the entry as a tree stores it for a text of this many tokens.
fn limited(kept: &Entry<u64>, length: usize) -> Entry<u64> {
    let shortest = kept.shortest.min(length);
    let restore_points = kept.restore_points.iter().copied().filter(|&stop| stop > 0 && stop < shortest);
    Entry { shortest, restore_points: restore_points.collect(), ..kept.clone() }
}

#[derive(Debug, Clone)]
enum Action {
    Insert(Vec<u32>, usize, Vec<usize>, u64),
    Thin,
    Find(Vec<u32>, usize),
    Pop,
}

/// Generates few distinct tokens in short runs, so that texts often share prefixes.
fn tokens() -> impl Strategy<Value = Vec<u32>> {
    let run = (0..2u32, 1..5usize).prop_map(|(token, count)| vec![token; count]);
    proptest::collection::vec(run, 0..6).prop_map(|runs| runs.concat())
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let shortest = prop_oneof![3 => Just(0), 1 => 0..16usize, 1 => Just(usize::MAX)];
    let restore_points = proptest::collection::btree_set(0..20usize, 0..4)
        .prop_map(|restore_points| restore_points.into_iter().collect());
    let action = prop_oneof![
        4 => (tokens(), shortest, restore_points, 1..50u64)
            .prop_map(|(tokens, shortest, restore_points, bytes)| Action::Insert(tokens, shortest, restore_points, bytes)),
        1 => Just(Action::Thin),
        4 => (tokens(), 1..5usize).prop_map(|(tokens, step)| Action::Find(tokens, step)),
        1 => Just(Action::Pop),
    ];
    proptest::collection::vec(action, 0..80)
}

/// Checks the invariants of every tree.
fn check(tree: &PrefixTree<u64>, naive: &Naive) {
    let mut listed: Vec<(Vec<u32>, u64)> = tree.iter().map(|(tokens, value)| (tokens, *value)).collect();
    listed.reverse();
    let expected: Vec<(Vec<u32>, u64)> =
        naive.0.iter().map(|(tokens, it)| (tokens.clone(), it.value)).collect();
    assert_eq!(listed, expected, "what is kept, by its last use");
    assert_eq!(tree.bytes(), naive.0.iter().map(|it| it.1.bytes).sum::<u64>());
    assert_eq!(tree.len(), naive.0.len());
    // Each node has a purpose: an entry or a branch.
    let used = tree.nodes.len() - tree.free.len();
    assert!(used <= 1 + 2 * naive.0.len(), "{used} nodes for {} entries", naive.0.len());
}

proptest! {
    #[test]
    fn the_tree_finds_what_a_search_of_everything_finds(actions in actions()) {
        let (mut tree, mut naive) = (PrefixTree::default(), Naive::default());
        for (value, action) in (0u64..).zip(actions) {
            match action {
                Action::Insert(tokens, shortest, restore_points, bytes) => {
                    let kept = Entry { value, bytes, shortest, restore_points };
                    let (mut gone, mut expected) = (tree.insert(&tokens, kept.clone()), naive.insert(&tokens, &kept));
                    gone.sort_unstable();
                    expected.sort_unstable();
                    prop_assert_eq!(gone, expected);
                }
                Action::Find(prompt, step) => {
                    // As an engine does: at least one token must be computed, and some engines reuse only whole steps.
                    let allowed = |common: usize| common.min(prompt.len().saturating_sub(1)) / step * step;
                    let found = tree.find(&prompt, allowed);
                    let candidates = naive.candidates(&prompt, allowed);
                    let best = candidates.iter().map(|it| it.2).max().unwrap_or(0);
                    prop_assert_eq!(found.matched.map_or(0, |matched| matched.length), best);
                    prop_assert_eq!(found.common, candidates.iter().map(|it| it.1).max().unwrap_or(0));
                    let next = |(tokens, _): &(Vec<u32>, Entry<u64>)| Some((*tokens.get(found.common)?, tokens.len()));
                    let begin = |it: &&(Vec<u32>, Entry<u64>)| it.0.starts_with(&prompt[..found.common]);
                    let mut nexts = naive.0.iter().filter(begin).filter_map(next);
                    match found.divergence {
                        Some((token, length)) => {
                            prop_assert!(nexts.any(|next| next == (token, length)));
                            prop_assert!(prompt.get(found.common) != Some(&token));
                        }
                        None => prop_assert!(found.common == prompt.len() || nexts.next().is_none()),
                    }
                    let covers = |it: &(Vec<u32>, Entry<u64>)| it.0.starts_with(&prompt);
                    match tree.locate(&prompt).and_then(|matched| tree.get(&matched)) {
                        Some(value) => prop_assert!(naive.0.iter().any(|it| covers(it) && it.1.value == *value)),
                        None => prop_assert!(!naive.0.iter().any(covers)),
                    }
                    if let Some(matched) = found.matched {
                        let value = *tree.get(&matched).expect("it was just found");
                        prop_assert!(candidates.iter().any(|it| it.0 == value && it.2 == best));
                        naive.touch(value);
                    }
                }
                Action::Thin => {
                    let stop = naive.0.first().and_then(|it| it.1.restore_points.first().copied());
                    prop_assert_eq!(tree.evict_restore_point(|_| Some((stop?, 0))), stop.is_some());
                    if let Some((_, kept)) = naive.0.first_mut().filter(|_| stop.is_some()) {
                        kept.restore_points.remove(0);
                    }
                }
                Action::Pop => {
                    let oldest = (!naive.0.is_empty()).then(|| naive.0.remove(0).1.value);
                    prop_assert_eq!(tree.pop_oldest(), oldest);
                }
            }
            check(&tree, &naive);
        }
        while tree.pop_oldest().is_some() {}
        prop_assert_eq!((tree.bytes(), tree.nodes.len() - tree.free.len()), (0, 1));
    }
}

/// A match of an evicted entry returns nothing, even if another entry reuses its node.
#[test]
fn what_was_evicted_is_not_given_out() {
    let mut tree = PrefixTree::default();
    let kept = |value| Entry { value, bytes: 1, shortest: 0, restore_points: Vec::new() };
    tree.insert(&[1, 2, 3], kept(1));
    let matched = tree.find(&[1, 2, 3, 4], |common| common).matched.expect("it is kept");
    assert_eq!(tree.get(&matched), Some(&1));
    assert_eq!(tree.pop_oldest(), Some(1));
    tree.insert(&[5, 6, 7], kept(2));
    assert_eq!(tree.get(&matched), None);
}

/// The cost of a search is that of reading the prompt once, regardless of the entries.
#[test]
fn a_search_looks_at_the_prompt_and_not_at_the_entries() {
    let mut tree = PrefixTree::default();
    let prompt = |user: u32| -> Vec<u32> {
        let turns = (0..30).flat_map(|turn| (0..100).map(move |place| user % (turn + 2) + place));
        (0..1000).chain(turns).chain([user]).collect()
    };
    for user in 0..5000 {
        tree.insert(&prompt(user), Entry { value: user, bytes: 1, shortest: 0, restore_points: Vec::new() });
    }
    assert_eq!(tree.len(), 5000);
    for user in (0..5000).step_by(97) {
        let prompt = prompt(user);
        let found = tree.find(&prompt, |common| common);
        assert_eq!(found.matched.map(|matched| *tree.get(&matched).expect("it is kept")), Some(user));
        // It visits each token once, and each node on the path. There are at most as many nodes as tokens.
        assert!(found.visited <= 2 * prompt.len() + 1, "{} for {}", found.visited, prompt.len());
    }
}

/// Prefixes that are not shared do not fill the memory, even if it is free.
#[test]
fn an_entry_that_is_not_used_leaves_and_one_that_is_used_stays() {
    let mut tree = PrefixTree::default();
    let kept = |value| Entry { value, bytes: 1, shortest: 0, restore_points: Vec::new() };
    tree.insert(&[1, 1], kept(1));
    tree.insert(&[2, 2], kept(2));
    let others = 3 * STALE_AFTER as u32;
    for other in 0..others {
        tree.insert(&[3, other], kept(3 + other));
        let gone: Vec<u32> = std::iter::from_fn(|| tree.pop_stale()).collect();
        assert!(!gone.contains(&2), "it is used again and again");
        if other.is_multiple_of(100) {
            assert!(tree.find(&[2, 2, 7], |length| length).matched.is_some());
        }
    }
    assert!(tree.locate(&[1, 1]).is_none() && tree.locate(&[2, 2]).is_some());
    assert!((2..=STALE_AFTER as usize + 1).contains(&tree.len()), "{}", tree.len());
    assert_eq!(tree.bytes(), tree.len() as u64);
}
