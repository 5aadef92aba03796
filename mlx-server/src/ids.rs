//! Random ids of answers, messages and calls. Each protocol adds its own prefix.

pub(crate) use chat_format::random_id;
