//! Text in and out: tokens, streamed text, chat templates and stop strings.
//!
//! Invariant: nothing here imports `mlx_rs`.

mod added;
mod bytes;
mod config;
mod decoder;
pub mod detokenizer;
mod divisions;
mod encoded;
mod guarded;
mod normalization;
mod parse;
mod pause;
mod pipeline;
mod quoted;
mod size_bound;
pub mod stop;
pub mod template;
mod token_bytes;
mod token_index;
pub mod tokenizer;
mod words;

pub use detokenizer::Detokenizer;
pub use encoded::{EncodeLimit, Encoded};
pub use guarded::GUARDED_THREAD;
pub(crate) use guarded::guarded;
pub use pause::{NO_PAUSE, Pause};
pub use quoted::PromptText;
pub use stop::{StopMatcher, StopOutput};
pub use template::{ChatTemplate, RenderLimits, TemplateInput};
pub use tokenizer::Tokenizer;
