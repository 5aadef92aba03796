//! Reads a GGUF file as a model folder: `config.json`, `tokenizer.json`, the chat template, and tensors in MLX's packing under the names of
//! transformers.

mod error;
mod metadata;
mod placement;

pub use error::{Error, Result};
pub use metadata::{List, Metadata, Value};
pub use placement::{Change, Placement, RowOrder};
