//! Tests of GGUF files and their tensors.

mod blocks;
mod float_types;
mod headers;
mod hostile;
mod ranges;
mod split;
mod writer;
