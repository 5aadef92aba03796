//! Ids of answers, messages and calls. Each protocol writes a word of its own before them.

pub(crate) use chat_format::random_id;
