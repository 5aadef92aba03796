//! Reads a GGUF file as a model folder: `config.json`, `tokenizer.json`, the chat template, and tensors in MLX's packing under the names of
//! transformers.

mod error;
mod file;
mod header;
mod metadata;
mod packing;
mod placement;
mod tensor;
mod tensor_type;
mod text_config;
mod tokenizer;

pub use error::{Error, Result};
pub use file::{GgufFile, StoredTensor};
pub use metadata::{List, Metadata, Value};
pub use packing::{Conversion, Mode, Packing, Part, ScaleType};
pub use placement::{Change, Placement, RowOrder};
pub use tensor::{Dtype, Tensor, packings, tensors};
pub use tensor_type::{Other, TensorType};
pub use text_config::{generation_config, tokenizer_config};
pub use tokenizer::tokenizer_json;
