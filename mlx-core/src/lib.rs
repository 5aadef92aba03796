//! The core of the runtime: models, caches, sampling, text and the engine that runs them. It knows no terminal
//! and no HTTP. `docs/architecture.md` is the map.

pub mod array;
mod atomic_write;
pub mod backend;
pub mod cache;
pub mod chat;
pub mod config;
pub mod convert;
#[cfg(test)]
mod device_lock;
pub mod engine;
pub mod error;
pub mod folder;
pub mod hub;
mod human_bytes;
pub mod inspect;
pub mod machine;
mod mlx_sys;
pub mod model;
pub mod quantization;
pub mod sampling;
mod stream_errors;
pub mod text;
pub mod weights;

pub use atomic_write::{keep_names, write_atomically};
pub use error::{Error, Result};
pub use human_bytes::size;
