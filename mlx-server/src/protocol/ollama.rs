//! The part of Ollama's API that reads: chats, embeddings and what models there are.

pub(crate) mod error;
