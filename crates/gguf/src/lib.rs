//! Reads a GGUF file as a model folder: `config.json`, `tokenizer.json`, the chat template, and tensors in MLX's packing under the names of
//! transformers.

mod config;
mod error;
mod file;
mod header;
mod metadata;
mod packing;
mod family;
mod metadata;
mod model;
mod names;
mod placement;
mod tensor;
mod tensor_type;
mod text_config;
mod tokenizer;

pub use config::{Floats, config};
pub use error::{Error, Result};
pub use file::{GgufFile, StoredTensor};
pub use metadata::{List, Metadata, Value};
pub use packing::{Conversion, Mode, Packing, Part, ScaleType};
pub use placement::{Change, Placement, RowOrder};
pub use tensor::{Dtype, Tensor, packings, tensors};
pub use tensor_type::{Other, TensorType};
pub use text_config::{generation_config, tokenizer_config};
pub use tokenizer::tokenizer_json;
pub use model::Stored;
pub use names::placements;
pub use placement::{Change, ColumnOrder, Placement, RowOrder, Tiles};
