//! A constraint that was compiled: the beginning of every sequence that has it.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Mutex, PoisonError};

use super::matcher::Matcher;
use super::triggers::Triggers;
use crate::sampling::TokenMask;

/// A grammar at its beginning, shared by the sequences that begin there.
pub(in crate::engine) struct Compiled {
    start: Mutex<Matcher>,
    /// The tokens that may come first.
    first: TokenMask,
    /// What the grammar waits for, unless it begins with the text.
    triggers: Option<Arc<Triggers>>,
    /// The tokens that end a text.
    pub(super) end_tokens: Vec<u32>,
    bytes: usize,
}

impl Compiled {
    /// A grammar whose text has so many bytes.
    pub(super) fn new(
        mut start: Matcher,
        end_tokens: Vec<u32>,
        triggers: Option<Triggers>,
        text: usize,
    ) -> Result<Self, String> {
        // The first mask takes longest, since nothing of the grammar has been looked at.
        let first = start.mask().map_err(|why| format!("cannot be enforced: {why}"))?;
        // A symbol of a grammar takes a few times the bytes of its text.
        let bytes = start.bytes() + 16 * text;
        Ok(Self { start: Mutex::new(start), first, triggers: triggers.map(Arc::new), end_tokens, bytes })
    }

    /// The bytes that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The tokens that may come first.
    pub(super) fn first(&self) -> &TokenMask {
        &self.first
    }

    /// A matcher at the beginning.
    pub(super) fn matcher(&self) -> Matcher {
        self.start.lock().unwrap_or_else(PoisonError::into_inner).copy()
    }

    /// What the grammar waits for, unless it begins with the text.
    pub(super) fn triggers(&self) -> Option<Arc<Triggers>> {
        self.triggers.clone()
    }
}

impl Debug for Compiled {
    fn fmt(&self, out: &mut Formatter) -> fmt::Result {
        out.debug_struct("Compiled").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
