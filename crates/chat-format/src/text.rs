//! Converts text to token ids and back: the tokenizer, streaming detokenization and stop strings.

mod added;
mod bytes;
pub(crate) mod config;
mod cut;
mod decoder;
pub mod detokenizer;
mod divisions;
mod encoded;
mod frame;
mod normalization;
mod overrides;
mod pair_frame;
mod parse;
mod pause;
mod pipeline;
mod quoted;
mod size_bound;
mod spelling;
pub mod stop;
mod token_bytes;
mod token_index;
pub mod tokenizer;
mod truncation_side;
mod vocabulary;
mod word_piece_class;
mod words;

pub use cut::EncodedText;
pub use detokenizer::Detokenizer;
pub use encoded::{EncodeLimit, Encoded};
pub use pause::{NO_PAUSE, Pause};
pub use quoted::PromptText;
pub use stop::{StopMatcher, StopOutput};
pub use tokenizer::Tokenizer;
pub use truncation_side::TruncationSide;
