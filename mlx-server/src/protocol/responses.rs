//! OpenAI's Responses API.

pub(crate) mod conversation;
pub(crate) mod item;
pub(crate) mod object;
mod reasoning;
pub(crate) mod request;
pub(crate) mod tools;
pub(crate) mod writer;
