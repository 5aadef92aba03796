//! Tests of GGUF files and their tensors.

mod blocks;
mod headers;
mod hostile;
mod ranges;
mod split;
mod writer;
