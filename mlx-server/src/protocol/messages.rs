//! Anthropic's Messages API: the fields of its requests, and its answers, whole or as events.

pub(crate) mod answer;
mod assembly;
mod block;
pub(crate) mod error;
mod message;
pub(crate) mod request;
mod signature;
mod thinking;
mod tools;
pub(crate) mod writer;
