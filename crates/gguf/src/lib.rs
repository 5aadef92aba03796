//! Reads a GGUF file as a model folder: `config.json`, `tokenizer.json`, the chat template, and tensors in MLX's packing under the names of
//! transformers.

mod config;
mod error;
mod family;
mod file;
mod file_type;
mod folder;
mod header;
mod metadata;
mod model;
mod names;
mod open_files;
mod packing;
mod placement;
mod tensor;
mod tensor_type;
#[cfg(test)]
mod testing;
mod text_config;
mod tokenizer;

pub use error::{Error, Result};
pub use file::{GgufFile, StoredTensor};
pub use folder::{GgufFolder, is_gguf, keep_open};
pub use metadata::{List, Metadata, Value};
pub use open_files::parts;
pub use packing::{Conversion, Mode, Packing};
pub use placement::{Change, ColumnOrder, Placement, RowOrder, Tiles};
pub use tensor::{Dtype, Tensor, packings, tensors};
pub use tensor_type::{Other, TensorType};
pub use tokenizer::{BytePair, TokenizerParts};
