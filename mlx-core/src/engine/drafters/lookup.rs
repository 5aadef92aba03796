//! Drafts from the text itself: the tokens that followed the last occurrence of its end.

use super::Drafter;
use super::ngrams::Ngrams;
use crate::sampling::{Cursor, Since, TokenHistory};

/// Prompt lookup. It follows the history; a rollback by k tokens costs O(k).
#[derive(Debug, Default)]
pub(super) struct Lookup {
    cursor: Cursor,
    text: Ngrams,
}

impl Drafter for Lookup {
    fn propose(&mut self, history: &TokenHistory, most: usize, draft: &mut Vec<u32>) -> usize {
        match history.since(&mut self.cursor) {
            Since::Append(tail) => self.text.extend(tail),
            Since::Truncated { to, tail } => {
                self.text.truncate(to);
                self.text.extend(tail);
            }
        }
        let Some(found) = self.text.own_match() else { return 0 };
        let text = self.text.tokens();
        for place in found.next..found.next + most {
            // Beyond the end of the text, a repetition continues with its own drafted tokens.
            let token = text.get(place).copied().unwrap_or_else(|| draft[place - text.len()]);
            draft.push(token);
        }
        found.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(lookup: &mut Lookup, history: &TokenHistory, most: usize) -> (usize, Vec<u32>) {
        let mut draft = Vec::new();
        let length = lookup.propose(history, most, &mut draft);
        (length, draft)
    }

    #[test]
    fn it_continues_as_the_text_did_and_follows_rollbacks() {
        let mut lookup = Lookup::default();
        let mut history = TokenHistory::new(vec![1, 2, 3, 4, 5, 6, 7, 1, 2, 3]);
        assert_eq!(proposed(&mut lookup, &history, 3), (3, vec![4, 5, 6]));
        history.push(9);
        assert_eq!(proposed(&mut lookup, &history, 3), (0, vec![]));
        history.truncate(10);
        assert_eq!(proposed(&mut lookup, &history, 2), (3, vec![4, 5]));
    }

    #[test]
    fn a_repetition_is_continued_beyond_the_text() {
        let history = TokenHistory::new(vec![8, 1, 2, 1, 2, 1, 2]);
        assert_eq!(proposed(&mut Lookup::default(), &history, 7), (4, vec![1, 2, 1, 2, 1, 2, 1]));
    }
}
