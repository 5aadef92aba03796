//! The endpoints of Ollama's API that do not change models: chats, texts, embeddings and lists of models.

pub(crate) mod embed;
pub(crate) mod error;
pub(crate) mod message;
pub(crate) mod model;
pub(crate) mod options;
pub(crate) mod request;
pub(crate) mod writer;
