//! States within a constraint: the interface, and the state in a grammar that applies from the start of the text.

use std::sync::Arc;

use super::compiled::Compiled;
use super::matcher::Matcher;
use crate::sampling::TokenMask;

/// A state within a constraint, which generated tokens advance.
pub(super) trait ConstraintState: Send {
    /// Advances by a token.
    fn push(&mut self, token: u32) -> Result<(), String>;

    /// Returns to the state after `length` tokens.
    fn truncate(&mut self, length: usize) -> Result<(), String>;

    /// Returns the tokens that may come next. `None`: all tokens.
    fn mask(&mut self) -> Result<Option<TokenMask>, String>;

    /// Returns the bytes that must come next.
    fn forced_bytes(&mut self) -> Result<Vec<u8>, String>;

    /// Returns the number of these tokens that may come next, one after the other.
    fn admits(&mut self, tokens: &[u32]) -> Result<usize, String>;
}

/// The state in a grammar that applies from the start of the text.
pub(super) struct WholeText {
    compiled: Arc<Compiled>,
    /// The sequence's copy of the matcher, created on first use.
    matcher: Option<Matcher>,
    /// The number of tokens that the matcher has consumed: all except an end-of-sequence token.
    taken: usize,
}

impl WholeText {
    pub(super) fn new(compiled: Arc<Compiled>) -> Self {
        Self { compiled, matcher: None, taken: 0 }
    }

    fn matcher(&mut self) -> &mut Matcher {
        self.matcher.get_or_insert_with(|| self.compiled.matcher())
    }
}

impl ConstraintState for WholeText {
    fn push(&mut self, token: u32) -> Result<(), String> {
        if self.compiled.end_tokens.contains(&token) {
            return Ok(());
        }
        self.matcher().consume(&[token])?;
        self.taken += 1;
        Ok(())
    }

    fn truncate(&mut self, length: usize) -> Result<(), String> {
        if let Some(matcher) = &mut self.matcher
            && length < self.taken
        {
            matcher.rollback(self.taken - length)?;
            self.taken = length;
        }
        Ok(())
    }

    fn mask(&mut self) -> Result<Option<TokenMask>, String> {
        match &mut self.matcher {
            Some(matcher) if self.taken > 0 => matcher.mask().map(Some),
            _ => Ok(Some(self.compiled.first().clone())),
        }
    }

    fn forced_bytes(&mut self) -> Result<Vec<u8>, String> {
        self.matcher().forced_bytes()
    }

    fn admits(&mut self, tokens: &[u32]) -> Result<usize, String> {
        self.matcher().admits(tokens)
    }
}
