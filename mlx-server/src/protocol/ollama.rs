//! Ollama's API: chats, texts, embeddings, lists of models, and downloads.

pub(crate) mod embed;
pub(crate) mod error;
pub(crate) mod message;
pub(crate) mod model;
pub(crate) mod options;
pub(crate) mod pull;
pub(crate) mod request;
pub(crate) mod writer;
