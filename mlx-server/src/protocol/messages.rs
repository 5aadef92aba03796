//! Anthropic's Messages API: reads requests, and writes answers as one message or as a stream of events.

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
