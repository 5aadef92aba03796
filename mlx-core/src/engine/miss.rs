//! Prefix misses, which show the user why a prompt reused less of the cache than expected.

use serde::{Deserialize, Serialize};

/// The first difference between a prompt and the most similar cached text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixMiss {
    /// The first position that differs.
    pub position: usize,
    /// The prompt's token at this position.
    pub token: u32,
    /// The text of that token.
    pub text: String,
    /// The cached text's token at this position.
    pub cached_token: u32,
    /// The text of that token.
    pub cached_text: String,
    /// The length of the cached text. If several cached texts have this token, the length of one of them.
    pub cached_length: usize,
}

/// A [`PrefixMiss`] without its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Miss {
    /// The first position that differs, which equals the number of common tokens.
    pub at: usize,
    /// The length of the cached text.
    pub cached: usize,
}
