//! The limits and results of tokenization.

use super::pause::{NO_PAUSE, Pause};
use crate::error::{Error, Result};

/// The limits of tokenizing a text.
#[derive(Clone, Copy)]
pub struct EncodeLimit<'a> {
    /// The maximum number of tokens. Tokenization stops when it is exceeded.
    pub tokens: usize,
    /// Called after every few milliseconds of work.
    pub pause: Pause<'a>,
}

impl EncodeLimit<'_> {
    /// No limits: texts are tokenized completely.
    pub const NONE: Self = Self { tokens: usize::MAX, pause: NO_PAUSE };
}

/// The tokens of a text, or a lower bound of their number if there are too many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoded {
    /// All tokens.
    Whole(Vec<u32>),
    /// The text has at least this many tokens, which is more than the limit.
    AtLeast(usize),
}

impl Encoded {
    /// Returns all tokens, or an error if there are too many.
    pub fn whole(self) -> Result<Vec<u32>> {
        match self {
            Self::Whole(ids) => Ok(ids),
            Self::AtLeast(fewest) => Err(Error::Tokenizer(format!("the text has at least {fewest} tokens"))),
        }
    }
}

/// The reason why tokenization stopped early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The limit is exceeded. There are at least this many tokens.
    Limit(usize),
    /// The text cannot be tokenized, or the work was cancelled.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
