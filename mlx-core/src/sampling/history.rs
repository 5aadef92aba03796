//! The token history of a sequence and the cursors that follow it. Invariant: it never contains draft tokens.

use std::sync::atomic::{AtomicU64, Ordering};

/// Prompt tokens, then accepted tokens. It only grows, except in [`TokenHistory::truncate`].
#[derive(Debug)]
pub struct TokenHistory {
    /// A unique number of this history. Clones have another.
    id: u64,
    tokens: Vec<u32>,
    prompt_length: usize,
    epoch: u64,
    /// Ascending in epoch and in length: a truncation to the same or a smaller length replaces earlier ones. So the first entry after an
    /// epoch has the smallest length since then.
    truncations: Vec<Truncation>,
}

/// The epoch that a truncation began, and the length after it.
#[derive(Debug, Clone, Copy)]
struct Truncation {
    epoch: u64,
    length: usize,
}

/// The history that a follower has read, and its position there. A default cursor has read nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    history: u64,
    epoch: u64,
    at: usize,
}

/// The changes that a follower must apply to catch up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since<'a> {
    /// Add these tokens.
    Append(&'a [u32]),
    /// Remove all tokens from position `to` on, which the follower has read, then append `tail`.
    Truncated {
        /// The length of the unchanged prefix.
        to: usize,
        /// The new tokens after it.
        tail: &'a [u32],
    },
}

impl TokenHistory {
    /// Creates a history that starts with `prompt`.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self { id: next_id(), prompt_length: prompt.len(), tokens: prompt, epoch: 0, truncations: Vec::new() }
    }

    /// All tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens after the prompt.
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_length..]
    }

    /// The number of prompt tokens.
    pub fn prompt_length(&self) -> usize {
        self.prompt_length
    }

    /// The number of tokens, which is also the position of the next one.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns true if the history has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Appends an accepted token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// Truncates the history to `length` tokens. This is the only way back. Followers notice it at their next sync. A `length` beyond the
    /// end changes nothing.
    pub fn truncate(&mut self, length: usize) {
        if length < self.tokens.len() {
            self.tokens.truncate(length);
            self.prompt_length = self.prompt_length.min(length);
            self.epoch += 1;
            let kept = self.truncations.partition_point(|earlier| earlier.length < length);
            self.truncations.truncate(kept);
            self.truncations.push(Truncation { epoch: self.epoch, length });
        }
    }

    /// Returns the changes since `cursor` was last here, and moves the cursor to the end. Regardless of the number of truncations in between,
    /// `to` is the length of the prefix that never changed. It is 0 for a cursor of another history. Costs at most a binary search.
    pub fn since(&self, cursor: &mut Cursor) -> Since<'_> {
        let here = Cursor { history: self.id, epoch: self.epoch, at: self.tokens.len() };
        let from = std::mem::replace(cursor, here);
        if from.at > 0 && from.history != self.id {
            return Since::Truncated { to: 0, tail: &self.tokens };
        }
        let first = self.truncations.partition_point(|truncation| truncation.epoch <= from.epoch);
        let shortest = self.truncations.get(first).map_or(usize::MAX, |truncation| truncation.length);
        if shortest < from.at {
            Since::Truncated { to: shortest, tail: &self.tokens[shortest..] }
        } else {
            Since::Append(&self.tokens[from.at..])
        }
    }
}

impl Default for TokenHistory {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

/// A clone is a different history, since both may continue differently.
impl Clone for TokenHistory {
    fn clone(&self) -> Self {
        let Self { id: _, tokens, prompt_length, epoch, truncations } = self;
        Self {
            id: next_id(),
            tokens: tokens.clone(),
            prompt_length: *prompt_length,
            epoch: *epoch,
            truncations: truncations.clone(),
        }
    }
}

/// Returns a new number. Never returns 0, which is the number in a default cursor.
fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Action {
        Push(u32),
        Truncate(usize),
        /// Replaces the other history with a clone of this one.
        Fork,
        /// Continues with the other history.
        Switch,
        Sync,
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        // Few distinct tokens, so that a history often regrows to the same length with the same last token.
        let action = prop_oneof![
            4 => (0..3u32).prop_map(Action::Push),
            2 => (0..20usize).prop_map(Action::Truncate),
            1 => Just(Action::Fork),
            1 => Just(Action::Switch),
            2 => Just(Action::Sync),
        ];
        proptest::collection::vec(action, 0..60)
    }

    proptest! {
        #[test]
        fn a_follower_always_holds_the_history(prompt in proptest::collection::vec(0..3u32, 0..6), actions in actions()) {
            let mut history = TokenHistory::new(prompt);
            let (mut cursor, mut copy) = (Cursor::default(), Vec::new());
            // The smallest length since the last sync.
            let mut shortest = usize::MAX;
            for action in actions {
                match action {
                    Action::Push(token) => history.push(token),
                    Action::Truncate(length) => {
                        history.truncate(length);
                        shortest = shortest.min(history.len());
                    }
                    Action::Fork | Action::Switch => {}
                    Action::Sync => {
                        match history.since(&mut cursor) {
                            Since::Append(tail) => {
                                prop_assert!(shortest >= copy.len());
                                copy.extend_from_slice(tail);
                            }
                            Since::Truncated { to, tail } => {
                                prop_assert_eq!(to, shortest);
                                prop_assert!(to < copy.len());
                                copy.truncate(to);
                                copy.extend_from_slice(tail);
                            }
                        }
                        prop_assert_eq!(&copy, history.tokens());
                        shortest = usize::MAX;
                    }
                }
                prop_assert!(history.prompt_length() <= history.len());
            }
        }

        #[test]
        fn a_follower_of_forks_holds_the_one_that_it_read_last(actions in actions()) {
            let mut histories = [TokenHistory::new(vec![1, 2]), TokenHistory::default()];
            let (mut cursor, mut copy) = (Cursor::default(), Vec::new());
            for action in actions {
                let [history, other] = &mut histories;
                match action {
                    Action::Push(token) => history.push(token),
                    Action::Truncate(length) => history.truncate(length),
                    Action::Fork => *other = history.clone(),
                    Action::Switch => std::mem::swap(history, other),
                    Action::Sync => {
                        let (kept, tail) = match history.since(&mut cursor) {
                            Since::Append(tail) => (copy.len(), tail),
                            Since::Truncated { to, tail } => (to, tail),
                        };
                        copy.truncate(kept);
                        copy.extend_from_slice(tail);
                        prop_assert_eq!(&copy, history.tokens());
                    }
                }
            }
        }
    }

    #[test]
    fn several_truncations_count_by_the_shortest_length() {
        let mut history = TokenHistory::new((0..10).collect());
        let (mut early, mut late) = (Cursor::default(), Cursor::default());
        assert_eq!(history.since(&mut early), Since::Append(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
        history.truncate(4);
        (20..25).for_each(|token| history.push(token));
        assert_eq!(history.since(&mut late), Since::Append(&[0, 1, 2, 3, 20, 21, 22, 23, 24]));
        history.truncate(7);
        history.push(30);
        assert_eq!(history.since(&mut early), Since::Truncated { to: 4, tail: &[20, 21, 22, 30] });
        assert_eq!(history.since(&mut late), Since::Truncated { to: 7, tail: &[30] });
        // Changes that a cursor has not read leave no trace.
        history.push(31);
        history.truncate(8);
        assert_eq!(history.since(&mut late), Since::Append(&[]));
        // Truncations to ever smaller lengths leave one entry.
        (1..8).rev().for_each(|length| history.truncate(length));
        assert_eq!(history.truncations.len(), 1);
    }
}
