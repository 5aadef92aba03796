//! Ids of answers, messages and calls. Each protocol writes a word of its own before them.

pub(crate) use mlx_core::chat::random_id;
