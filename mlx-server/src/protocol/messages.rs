//! Anthropic's Messages API.

pub(crate) mod error;
