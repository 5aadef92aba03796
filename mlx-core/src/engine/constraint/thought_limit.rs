//! A budget of thought tokens. Once it is spent, the marker that closes the thought is the only text that may follow. Invariant: a run in
//! which the model closes its thought at the same token draws the same answer.

use std::time::Duration;

use chat_format::ThoughtTracker;

use crate::error::Result;
use crate::folder::ModelFolder;
use crate::sampling::{Constraint, Cursor, Since, TokenHistory, TokenMask};

/// The number of tokens at the end of a prompt that are searched for an open thought.
const PROMPT_END: usize = 64;

/// A budget, and the thoughts of the answer at the end of the prompt.
#[derive(Debug, Clone)]
pub(in crate::engine) struct ThoughtLimit {
    tracker: ThoughtTracker,
    budget: usize,
}

impl ThoughtLimit {
    /// Returns the limit of an answer that begins with the last `begun` tokens of the prompt. `is_continued` is true if the prompt also contains
    /// the beginning of its message. `None` if the model has no thoughts.
    pub(in crate::engine) fn new(
        budget: usize,
        (prompt, begun): (&[u32], usize),
        is_continued: bool,
        folder: &ModelFolder,
    ) -> Result<Option<Self>> {
        let (prompt, begun) = prompt.split_at(prompt.len().saturating_sub(begun));
        let end = &prompt[prompt.len().saturating_sub(PROMPT_END)..];
        let end = folder.tokenizer.decode(end, false);
        let tracker = ThoughtTracker::new(&folder.format, &folder.tokenizer, &end, is_continued)?;
        Ok(tracker.map(|mut tracker| {
            for token in begun {
                tracker.push(*token);
            }
            Self { tracker, budget }
        }))
    }
}

/// Follows the thoughts of a sequence, and its other constraint.
struct LimitedThoughts {
    start: ThoughtLimit,
    tracker: ThoughtTracker,
    cursor: Cursor,
    /// The position of the first generated token.
    begin: usize,
    /// The next token, if it closes a thought.
    closing: Option<u32>,
    inner: Option<Box<dyn Constraint>>,
}

/// Returns the constraint that also enforces this limit, from the end of the history on.
pub(in crate::engine) fn thought_limit(
    start: ThoughtLimit,
    inner: Option<Box<dyn Constraint>>,
    history: &TokenHistory,
) -> Box<dyn Constraint> {
    let mut cursor = Cursor::default();
    history.since(&mut cursor);
    let tracker = start.tracker.clone();
    let mut limited = LimitedThoughts { start, tracker, cursor, begin: history.len(), closing: None, inner };
    limited.find_closing();
    Box::new(limited)
}

impl LimitedThoughts {
    fn follow(&mut self, history: &TokenHistory) {
        let tokens = match history.since(&mut self.cursor) {
            Since::Append([]) => return,
            Since::Append(tokens) => tokens,
            // A rollback is rare, so the thoughts are read again.
            Since::Truncated { .. } => {
                self.tracker = self.start.tracker.clone();
                history.tokens().get(self.begin..).unwrap_or_default()
            }
        };
        for token in tokens {
            self.tracker.push(*token);
        }
        self.find_closing();
    }

    fn find_closing(&mut self) {
        let is_spent = self.tracker.is_open() && self.tracker.tokens() >= self.start.budget;
        self.closing = if is_spent { self.tracker.closing().first().copied() } else { None };
    }
}

impl LimitedThoughts {
    /// Forbids tokens after which the budget would end within a character, where a grammar does not let the thought end.
    fn end_with_a_character(&self, allowed: &mut TokenMask) {
        let forbidden = self.tracker.unfinishable(self.left());
        if forbidden.is_empty() {
            return;
        }
        let before = allowed.clone();
        for token in forbidden {
            allowed.forbid(token);
        }
        if allowed.is_empty() {
            *allowed = before;
        }
    }

    /// Returns the number of tokens that are left of the budget.
    fn left(&self) -> usize {
        self.start.budget.saturating_sub(self.tracker.tokens())
    }
}

impl Constraint for LimitedThoughts {
    fn prepare(&mut self, history: &TokenHistory) {
        self.follow(history);
        if let Some(inner) = &mut self.inner {
            inner.prepare(history);
        }
    }

    fn is_free(&mut self, history: &TokenHistory) -> bool {
        self.follow(history);
        self.closing.is_none() && self.inner.as_mut().is_none_or(|inner| inner.is_free(history))
    }

    fn last_prepare_time(&self) -> Duration {
        self.inner.as_ref().map_or(Duration::ZERO, |inner| inner.last_prepare_time())
    }

    fn forced_bytes(&mut self, history: &TokenHistory) -> Vec<u8> {
        self.follow(history);
        match &mut self.inner {
            Some(inner) if self.closing.is_none() => inner.forced_bytes(history),
            _ => Vec::new(),
        }
    }

    fn admits(&mut self, history: &TokenHistory, tokens: &[u32]) -> usize {
        self.follow(history);
        let inner = self.inner.as_mut().map_or(tokens.len(), |inner| inner.admits(history, tokens));
        let left = self.left();
        match self.closing {
            Some(closing) => inner.min(usize::from(tokens.first() == Some(&closing))),
            None if self.tracker.is_open() => inner.min(left),
            None => inner,
        }
    }

    fn restrict(&mut self, history: &TokenHistory, allowed: &mut TokenMask) -> Result<()> {
        self.follow(history);
        if let Some(inner) = &mut self.inner {
            inner.restrict(history, allowed)?;
        }
        if let Some(closing) = self.closing {
            // A grammar that applies within a thought ends first.
            allowed.keep_only(closing);
        } else if self.inner.is_some() && self.tracker.is_open() {
            self.end_with_a_character(allowed);
        }
        Ok(())
    }
}
