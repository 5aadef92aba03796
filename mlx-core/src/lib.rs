//! Runs language models on this machine: loading, sampling, batching and caching in one [`Engine`]. It has no terminal or HTTP code.
//!
//! Most programs need only the names at the root. An engine takes [`Request`]s and returns [`Generation`]s, which are iterators of
//! [`Event`]s (or streams, see [`Generation::into_stream`]):
//!
//! ```no_run
//! use mlx_core::{Engine, EngineOptions, RequestOptions};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let folder = mlx_hub::resolve("ORG/NAME".as_ref())?;
//! let engine = Engine::start(&folder, &EngineOptions::default(), |_, _| {})?;
//! let prompt = engine.folder().tokenizer.encode("Once upon a time", true)?;
//! let options = RequestOptions { max_tokens: Some(50), ..RequestOptions::default() };
//! for event in engine.submit(engine.request(prompt, &options)?)? {
//!     print!("{}", event.delta());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`ChatSession`] is a conversation, and [`SamplingOptions`] control how tokens are drawn. `examples/` has three programs of twenty lines.
//! `docs/architecture.md` describes the internals.

mod abilities;
pub mod adapter;
#[doc(hidden)]
pub mod array;
mod awake;
#[doc(hidden)]
pub mod backend;
pub mod cache;
pub mod chat;
#[doc(hidden)]
pub mod config;
pub mod convert;
pub mod cross_encoder;
#[cfg(test)]
mod device_lock;
pub mod distributed;
pub mod embeddings;
pub mod engine;
mod error;
mod folder;
mod freed;
mod hangup;
pub mod inspect;
pub mod machine;
mod macos;
pub mod memory_pressure;
mod mlx_sys;
#[doc(hidden)]
pub mod model;
mod model_name;
#[cfg(feature = "graph")]
pub mod operations;
mod processor;
pub mod quantization;
pub mod sampling;
pub mod sentence_transformers;
mod sockets;
pub mod speech;
mod stream_errors;
pub mod transcription;
mod variant_names;
pub mod weights;
mod wired;

pub use crate::error::{Error, Result};
pub use abilities::{Abilities, RANKING_TASK};
pub use chat::ChatSession;
pub use chat_format::Message;
pub use engine::{Engine, EngineOptions, Event, Generation, GenerationRequest as Request, RequestOptions};
pub use folder::ModelFolder;
pub use mlx_sys::{is_mlx_default, set_mlx_defaults};
pub use processor::{AudioClip, AudioProcessor, NoMedia, NoTowers, Processor, ResizedPicture};
pub use sampling::SamplingOptions;

// For the front ends.
pub use hangup::{ignore_requests_to_end, ignores_hangup};
