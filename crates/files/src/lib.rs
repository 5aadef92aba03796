//! Readers and writers for the small files of a model folder: JSON read by key, warnings about optional files, the
//! names of the weight files, the tokenizers of models without one, and atomic writes.
//!
//! ```no_run
//! use mlx_files::Fields;
//!
//! # fn main() -> mlx_files::Result<()> {
//! let config: Fields = Fields::read("model/config.json".as_ref())?;
//! println!("{} layers", config.size("num_hidden_layers")?);
//! # Ok(())
//! # }
//! ```

mod atomic_write;
mod fields;
mod human_bytes;
mod model_file;
mod tokenizer_lender;
mod warnings;
pub mod weight_files;

pub use atomic_write::{
    TEMPORARY, create_private_folder, create_privately, sync_folder, warn_of_readers, write_atomically,
    write_privately,
};
pub use fields::{Fields, bytes, expect_utf8_json, object};
pub use human_bytes::{rough_size, size};
pub use model_file::{read_model_file, tokenizer_parts};
pub use tokenizer_lender::tokenizer_lender;
pub use warnings::Warnings;

pub use mlx_gguf::{Error, Result, TokenizerParts};
