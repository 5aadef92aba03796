//! A compiled constraint: the initial state of every sequence that uses it.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Mutex, PoisonError};

use super::matcher::Matcher;
use super::triggers::Triggers;
use crate::sampling::TokenMask;

/// A grammar in its initial state, shared by all sequences that use it.
pub(in crate::engine) struct Compiled {
    start: Mutex<Matcher>,
    /// The tokens allowed at the start.
    first: TokenMask,
    /// The markers that start the grammar; `None` if it applies from the start of the text.
    triggers: Option<Arc<Triggers>>,
    /// End-of-sequence tokens.
    pub(super) end_tokens: Vec<u32>,
    bytes: usize,
}

impl Compiled {
    /// Creates the initial state of a grammar; `text` is the length of its source in bytes.
    pub(super) fn new(
        mut start: Matcher,
        end_tokens: Vec<u32>,
        triggers: Option<Triggers>,
        text: usize,
    ) -> Result<Self, String> {
        // The first mask takes longest, since no part of the grammar has been explored yet.
        let first = start.mask().map_err(|why| format!("cannot be enforced: {why}"))?;
        // A symbol of a grammar takes a few times the bytes of its text.
        let bytes = start.bytes() + 16 * text;
        Ok(Self { start: Mutex::new(start), first, triggers: triggers.map(Arc::new), end_tokens, bytes })
    }

    /// Returns the approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the tokens allowed at the start.
    pub(super) fn first(&self) -> &TokenMask {
        &self.first
    }

    /// Returns a matcher in the initial state.
    pub(super) fn matcher(&self) -> Matcher {
        self.start.lock().unwrap_or_else(PoisonError::into_inner).copy()
    }

    /// Returns the markers that start the grammar; `None` if it applies from the start of the text.
    pub(super) fn triggers(&self) -> Option<Arc<Triggers>> {
        self.triggers.clone()
    }
}

impl Debug for Compiled {
    fn fmt(&self, out: &mut Formatter) -> fmt::Result {
        out.debug_struct("Compiled").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
