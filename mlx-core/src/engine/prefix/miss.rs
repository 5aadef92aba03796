//! Where a prompt left a known prefix: what a user needs to know to get more hits.

/// Where a prompt left a known prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixMiss {
    /// The first position that differs.
    pub position: usize,
    /// The prompt's token there.
    pub token: u32,
    /// Its text.
    pub text: String,
    /// The token of the text that was kept.
    pub kept_token: u32,
    /// Its text.
    pub kept_text: String,
    /// The length of the kept text; of one of them, if several have this token.
    pub kept_length: usize,
}
