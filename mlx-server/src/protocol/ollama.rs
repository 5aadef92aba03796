//! The part of Ollama's API that reads: chats, texts, embeddings and what models there are.

pub(crate) mod embed;
pub(crate) mod error;
pub(crate) mod message;
pub(crate) mod model;
pub(crate) mod options;
pub(crate) mod request;
pub(crate) mod writer;
