//! The token history of one sequence and the cursors that follow it. Invariant: it never holds drafts.

/// Prompt tokens, then accepted tokens. It only grows, but for [`TokenHistory::truncate`].
#[derive(Debug, Clone, Default)]
pub struct TokenHistory {
    tokens: Vec<u32>,
    prompt_length: usize,
    epoch: u64,
}

/// How far a follower has read. A default cursor has read nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    epoch: u64,
    at: usize,
}

/// What a follower has to do to catch up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since<'a> {
    /// Take these tokens in addition.
    Append(&'a [u32]),
    /// Forget everything and take these tokens, the whole history.
    Rebuild(&'a [u32]),
}

impl TokenHistory {
    /// A history that begins with `prompt`.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self { prompt_length: prompt.len(), tokens: prompt, epoch: 0 }
    }

    /// All tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens after the prompt.
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_length..]
    }

    /// How many tokens of the history are prompt.
    pub fn prompt_length(&self) -> usize {
        self.prompt_length
    }

    /// The number of tokens, which is also the position of the next one.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Appends an accepted token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// Cuts the history to `length` tokens, the only way back. Followers notice when they next ask.
    /// A longer `length` changes nothing.
    pub fn truncate(&mut self, length: usize) {
        if length < self.tokens.len() {
            self.tokens.truncate(length);
            self.prompt_length = self.prompt_length.min(length);
            self.epoch += 1;
        }
    }

    /// What has happened since `cursor` last asked; moves the cursor to the end. O(1).
    pub fn since(&self, cursor: &mut Cursor) -> Since<'_> {
        let from = *cursor;
        *cursor = Cursor { epoch: self.epoch, at: self.tokens.len() };
        if from.epoch == self.epoch {
            Since::Append(&self.tokens[from.at..])
        } else {
            Since::Rebuild(&self.tokens)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Action {
        Push(u32),
        Truncate(usize),
        Sync,
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        // Few tokens, so that a history often regrows to the same length with the same last token.
        let action = prop_oneof![
            4 => (0..3u32).prop_map(Action::Push),
            1 => (0..20usize).prop_map(Action::Truncate),
            2 => Just(Action::Sync),
        ];
        proptest::collection::vec(action, 0..60)
    }

    proptest! {
        #[test]
        fn a_follower_always_holds_the_history(prompt in proptest::collection::vec(0..3u32, 0..6), actions in actions()) {
            let mut history = TokenHistory::new(prompt);
            let (mut cursor, mut copy) = (Cursor::default(), Vec::new());
            for action in actions {
                match action {
                    Action::Push(token) => history.push(token),
                    Action::Truncate(length) => history.truncate(length),
                    Action::Sync => {
                        match history.since(&mut cursor) {
                            Since::Append(tail) => copy.extend_from_slice(tail),
                            Since::Rebuild(all) => copy = all.to_vec(),
                        }
                        prop_assert_eq!(&copy, history.tokens());
                    }
                }
                prop_assert!(history.prompt_length() <= history.len());
            }
        }
    }
}
