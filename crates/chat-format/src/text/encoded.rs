//! Limits of tokenizing a text, and what came out.

use super::pause::{NO_PAUSE, Pause};
use crate::error::{Error, Result};

/// How far a text is tokenized.
#[derive(Clone, Copy)]
pub struct EncodeLimit<'a> {
    /// A text with more tokens is not tokenized to its end.
    pub tokens: usize,
    /// Asked after every few milliseconds of work.
    pub pause: Pause<'a>,
}

impl EncodeLimit<'_> {
    /// No limit: a text is tokenized to its end.
    pub const NONE: Self = Self { tokens: usize::MAX, pause: NO_PAUSE };
}

/// The tokens of a text, or that there are too many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoded {
    /// All tokens.
    Whole(Vec<u32>),
    /// The text has at least so many tokens, more than the limit.
    AtLeast(usize),
}

impl Encoded {
    /// All tokens, or an error if there are too many.
    pub fn whole(self) -> Result<Vec<u32>> {
        match self {
            Self::Whole(ids) => Ok(ids),
            Self::AtLeast(fewest) => Err(Error::Tokenizer(format!("the text has at least {fewest} tokens"))),
        }
    }
}

/// Why the tokens of a text end early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The limit is exceeded: there are at least so many tokens.
    Limit(usize),
    /// The text cannot be tokenized, or the work was ended.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
