//! Drafts from recent answers: what followed where another answer of this engine looked like the end of a text.

use super::ngrams::Ngrams;

/// The most tokens that are kept: about 1.3 MB with their index.
const MOST: usize = 1 << 15;

/// No token; it stands between two answers.
const BREAK: u32 = u32::MAX;

/// The bytes that [`Answers`] takes at most.
pub(in crate::engine) const ANSWERS_BYTES: u64 = 48 * MOST as u64;

/// The newest answers, up to a number of tokens.
#[derive(Debug, Default)]
pub(super) struct Answers(Ngrams);

impl Answers {
    /// Adds an answer. When there are too many, the older half goes.
    pub(super) fn add(&mut self, answer: &[u32]) {
        let answer = &answer[answer.len().saturating_sub(MOST / 2 - 1)..];
        if self.0.tokens().len() + answer.len() >= MOST {
            let newer = self.0.tokens()[self.0.tokens().len() - MOST / 2..].to_vec();
            self.0 = Ngrams::default();
            self.0.extend(&newer);
        }
        self.0.extend(answer);
        self.0.extend(&[BREAK]);
    }

    /// Proposes up to `most` tokens behind the end of `text`; returns how many tokens of its end were found.
    pub(super) fn propose(&self, text: &[u32], most: usize, draft: &mut Vec<u32>) -> usize {
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
            assert!(answers.0.tokens().len() <= MOST, "bounded");
        }
        let mut draft = Vec::new();
        assert_eq!((answers.propose(&[1, 2, 3], 8, &mut draft), draft.len()), (0, 0), "the oldest is gone");
        assert_eq!(
            (answers.propose(&[39_500, 39_501, 39_502], 2, &mut draft), draft),
            (3, vec![39_503, 39_504])
        );
        answers.add(&vec![7; 3 * MOST]);
        assert!(answers.0.tokens().len() <= MOST, "one long answer");
    }
}
