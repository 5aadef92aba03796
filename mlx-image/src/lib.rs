//! Pictures before a tower sees them: decoding with limits, resizing as Pillow does it, and the sizes that families ask for.

mod decode;
mod error;
mod jpeg;
mod picture;
mod resize;
pub mod sizes;

pub use decode::{Limits, decode, media_type};
pub use error::Error;
pub use picture::{Picture, sha256};
pub use resize::{Filter, resize, within};
