//! Follows the history of a sequence through its constraint, and precomputes the mask of the next token.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::compiled::Compiled;
use super::place::{ConstraintState, WholeText};
use super::triggered::TriggeredText;
use crate::error::{Error, Result};
use crate::sampling::{Constraint, Cursor, Since, TokenHistory, TokenMask};

/// The follower of one sequence. A rollback costs as much as that of its [`ConstraintState`].
struct Follower<P> {
    place: P,
    cursor: Cursor,
    /// The position of the first generated token.
    start: usize,
    /// The number of generated tokens that the place has consumed.
    length: usize,
    /// The mask of the next token, once it is computed.
    ready: Option<Result<Option<TokenMask>, String>>,
    cost: Duration,
}

impl<P: ConstraintState> Follower<P> {
    /// Follows `history` from its end, since the prompt is not part of the text.
    fn new(place: P, history: &TokenHistory) -> Self {
        let mut cursor = Cursor::default();
        history.since(&mut cursor);
        Self { place, cursor, start: history.len(), length: 0, ready: None, cost: Duration::ZERO }
    }

    /// Catches up with the history. Returns true if anything has changed.
    fn sync(&mut self, history: &TokenHistory) -> Result<bool, String> {
        let mut changed = false;
        let tokens = match history.since(&mut self.cursor) {
            Since::Append(tokens) => tokens,
            Since::Truncated { to, tail } => {
                let kept = to.saturating_sub(self.start);
                if kept < self.length {
                    self.place.truncate(kept)?;
                    (self.length, changed) = (kept, true);
                }
                // After a fork, the follower receives the prompt again.
                tail.get(self.start.saturating_sub(to)..).unwrap_or_default()
            }
        };
        for &token in tokens {
            self.place.push(token)?;
            self.length += 1;
        }
        Ok(changed || !tokens.is_empty())
    }
}

impl<P: ConstraintState> Follower<P> {
    /// Catches up with the history, and drops a mask that was computed for another one.
    fn follow(&mut self, history: &TokenHistory) {
        match self.sync(history) {
            Ok(false) => {}
            Ok(true) => self.ready = None,
            Err(why) => self.ready = Some(Err(why)),
        }
    }
}

impl<P: ConstraintState> Constraint for Follower<P> {
    fn prepare(&mut self, history: &TokenHistory) {
        let begun = Instant::now();
        self.follow(history);
        if self.ready.is_none() {
            self.ready = Some(self.place.mask());
            self.cost = begun.elapsed();
        }
    }

    fn forced_bytes(&mut self, history: &TokenHistory) -> Vec<u8> {
        self.follow(history);
        // An error here occurs again when the mask is computed.
        self.place.forced_bytes().unwrap_or_default()
    }

    fn admits(&mut self, history: &TokenHistory, tokens: &[u32]) -> usize {
        self.follow(history);
        self.place.admits(tokens).unwrap_or(tokens.len())
    }

    fn last_prepare_time(&self) -> Duration {
        self.cost
    }

    fn restrict(&mut self, history: &TokenHistory, allowed: &mut TokenMask) -> Result<()> {
        self.prepare(history);
        match &self.ready {
            Some(Ok(None)) => Ok(()),
            Some(Ok(Some(mask))) => {
                allowed.keep(mask);
                Ok(())
            }
            Some(Err(why)) => Err(Error::Sampling(format!("the constraint cannot continue: {why}"))),
            None => Err(Error::Internal("the mask of a constraint was not computed".into())),
        }
    }
}

/// Returns the follower that enforces a compiled constraint on a sequence with this history.
pub(in crate::engine) fn follower(compiled: Arc<Compiled>, history: &TokenHistory) -> Box<dyn Constraint> {
    match compiled.triggers() {
        None => Box::new(Follower::new(WholeText::new(compiled), history)),
        Some(triggers) => Box::new(Follower::new(TriggeredText::new(compiled, triggers), history)),
    }
}
