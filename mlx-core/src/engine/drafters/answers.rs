//! Drafts from recent answers of this engine: the tokens that followed an earlier occurrence of the text's end.

use std::collections::BTreeMap;

use super::ngrams::Ngrams;

/// The maximum number of stored tokens: about 1.3 MB with their index.
const MAX_TOKENS: usize = 1 << 15;

/// A separator between two answers. It is no token id.
const BREAK: u32 = u32::MAX;

/// The maximum number of bytes of [`RecentAnswers`].
pub(in crate::engine) const ANSWERS_BYTES: u64 = 48 * MAX_TOKENS as u64;

/// The newest answers of each owner. They are proposed to that owner only, since the speed of an answer reveals which drafts were right.
#[derive(Debug, Default)]
pub(super) struct RecentAnswers {
    by_owner: BTreeMap<Option<u64>, Answers>,
    /// The owners that have answers, in the order of their newest answer.
    order: Vec<Option<u64>>,
}

impl RecentAnswers {
    /// Adds an answer. If all owners together exceed the limit, the answers of the least recently active owner are dropped.
    pub(super) fn add(&mut self, owner: Option<u64>, answer: &[u32]) {
        self.by_owner.entry(owner).or_default().add(answer);
        self.order.retain(|it| *it != owner);
        self.order.push(owner);
        while self.order.len() > 1 && self.tokens() > MAX_TOKENS {
            self.by_owner.remove(&self.order.remove(0));
        }
    }

    /// Proposes up to `most` tokens after the end of an owner's `text`; returns the length of the match.
    pub(super) fn propose(
        &self,
        owner: Option<u64>,
        text: &[u32],
        most: usize,
        draft: &mut Vec<u32>,
    ) -> usize {
        self.by_owner.get(&owner).map_or(0, |answers| answers.propose(text, most, draft))
    }

    fn tokens(&self) -> usize {
        self.by_owner.values().map(|answers| answers.0.tokens().len()).sum()
    }
}

/// The newest answers of one owner, up to a number of tokens.
#[derive(Debug, Default)]
struct Answers(Ngrams);

impl Answers {
    /// Adds an answer. If there are too many tokens, the older half is dropped.
    fn add(&mut self, answer: &[u32]) {
        let answer = &answer[answer.len().saturating_sub(MAX_TOKENS / 2 - 1)..];
        if self.0.tokens().len() + answer.len() >= MAX_TOKENS {
            let newer = self.0.tokens()[self.0.tokens().len() - MAX_TOKENS / 2..].to_vec();
            self.0 = Ngrams::default();
            self.0.extend(&newer);
        }
        self.0.extend(answer);
        self.0.extend(&[BREAK]);
    }

    /// Proposes up to `most` tokens after the end of `text`. Returns the number of tokens at its end that matched.
    fn propose(&self, text: &[u32], most: usize, draft: &mut Vec<u32>) -> usize {
        let Some(found) = self.0.match_of(text) else { return 0 };
        let after = self.0.tokens()[found.next..].iter().take(most).take_while(|&&token| token != BREAK);
        draft.extend(after);
        found.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_proposed_up_to_its_end_and_old_ones_go() {
        let mut answers = Answers::default();
        answers.add(&[1, 2, 3, 4, 5]);
        let mut draft = Vec::new();
        assert_eq!((answers.propose(&[9, 1, 2, 3], 8, &mut draft), draft), (3, vec![4, 5]));
        for number in 0..40 {
            let answer: Vec<u32> = (0..1000).map(|place| 10 + number * 1000 + place).collect();
            answers.add(&answer);
            assert!(answers.0.tokens().len() <= MAX_TOKENS, "bounded");
        }
        let mut draft = Vec::new();
        assert_eq!((answers.propose(&[1, 2, 3], 8, &mut draft), draft.len()), (0, 0), "the oldest is gone");
        assert_eq!(
            (answers.propose(&[39_500, 39_501, 39_502], 2, &mut draft), draft),
            (3, vec![39_503, 39_504])
        );
        answers.add(&vec![7; 3 * MAX_TOKENS]);
        assert!(answers.0.tokens().len() <= MAX_TOKENS, "one long answer");
    }

    #[test]
    fn owners_see_their_own_answers_and_share_one_limit() {
        let mut recent = RecentAnswers::default();
        let (one, other) = (Some(1), Some(2));
        recent.add(one, &[1, 2, 3, 4, 5]);
        let mut draft = Vec::new();
        for stranger in [other, None] {
            assert_eq!((recent.propose(stranger, &[1, 2, 3], 8, &mut draft), draft.len()), (0, 0));
        }
        assert_eq!((recent.propose(one, &[1, 2, 3], 8, &mut draft), draft), (3, vec![4, 5]));
        for owner in 2..200 {
            let answer: Vec<u32> = (0..1000).map(|place| owner * 1000 + place).collect();
            recent.add(Some(u64::from(owner)), &answer);
            assert!(recent.tokens() <= MAX_TOKENS && recent.by_owner.len() == recent.order.len(), "bounded");
        }
        let mut draft = Vec::new();
        assert_eq!(recent.propose(one, &[1, 2, 3], 8, &mut draft), 0, "the oldest owner's are gone");
        let newest = [199_000, 199_001, 199_002];
        assert_eq!((recent.propose(Some(199), &newest, 1, &mut draft), draft), (3, vec![199_003]));
    }
}
