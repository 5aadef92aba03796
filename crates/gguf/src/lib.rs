//! Reads a GGUF file as a model folder: `config.json`, `tokenizer.json`, the chat template, and tensors in MLX's packing under the names of
//! transformers.

mod error;
mod metadata;
mod placement;
mod text_config;
mod tokenizer;

pub use error::{Error, Result};
pub use metadata::{List, Metadata, Value};
pub use placement::{Change, Placement, RowOrder};
pub use text_config::{generation_config, tokenizer_config};
pub use tokenizer::tokenizer_json;
