//! Reads a GGUF file as a model folder: `config.json`, `tokenizer.json`, the chat template, and tensors in MLX's packing under the names of
//! transformers.

mod config;
mod error;
mod family;
mod metadata;
mod model;
mod names;
mod placement;
#[cfg(test)]
mod testing;

pub use config::{Floats, config};
pub use error::{Error, Result};
pub use metadata::{List, Metadata, Value};
pub use model::Stored;
pub use names::placements;
pub use placement::{Change, ColumnOrder, Placement, RowOrder, Tiles};
