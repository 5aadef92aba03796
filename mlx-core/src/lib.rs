//! The core of the runtime: models, caches, sampling, text and the engine that runs them. It knows no terminal
//! and no HTTP. `docs/architecture.md` is the map.

pub mod array;
pub mod cache;
pub mod config;
pub mod convert;
pub mod engine;
pub mod error;
pub mod folder;
pub mod guide;
pub mod hub;
pub mod inspect;
pub mod machine;
mod mlx_sys;
pub mod model;
pub mod packed;
pub mod quantisation;
pub mod sampling;
pub mod session;
mod size;
pub mod text;
#[cfg(test)]
mod turn;
mod unpack;
pub mod weights;
mod whole;

pub use error::{Error, Result};
pub use size::size;
pub use whole::{keep_names, write_whole};
