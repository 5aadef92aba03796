//! Places in what a constraint allows: the interface, and the place in a grammar that begins with the text.

use std::sync::Arc;

use super::compiled::Compiled;
use super::matcher::Matcher;
use crate::sampling::TokenMask;

/// A place in what a constraint allows, moved by generated tokens.
pub(super) trait Place: Send {
    /// Goes on by a token.
    fn push(&mut self, token: u32) -> Result<(), String>;

    /// Goes back to where the text had so many tokens.
    fn truncate(&mut self, length: usize) -> Result<(), String>;

    /// The tokens that may come next. `None`: all.
    fn mask(&mut self) -> Result<Option<TokenMask>, String>;

    /// The bytes that must come next.
    fn forced_bytes(&mut self) -> Result<Vec<u8>, String>;

    /// How many of these tokens may come next, one after the other.
    fn admits(&mut self, tokens: &[u32]) -> Result<usize, String>;
}

/// A place in a grammar that begins with the text.
pub(super) struct WholeText {
    compiled: Arc<Compiled>,
    /// A copy for this sequence, made when it is first needed.
    matcher: Option<Matcher>,
    /// How many tokens the matcher has taken: all but one that has ended the text.
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

impl Place for WholeText {
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
