//! Preprocessing of pictures for vision towers: decoding with limits, resizing like Pillow, and the sizes that model
//! families use.
//!
//! ```
//! use mlx_image::{Filter, Limits, Picture, decode, resize};
//!
//! let picture = Picture::new(2, 1, vec![0, 0, 0, 255, 255, 255]).expect("three bytes for each pixel");
//! let file = picture.to_png();
//! let decoded = decode(&file, &Limits::default())?;
//! assert_eq!(resize(&decoded, 4, 2, Filter::Bicubic).pixels().len(), 4 * 2 * 3);
//! # Ok::<(), mlx_image::Error>(())
//! ```

mod decode;
mod error;
mod jpeg;
mod picture;
mod resize;
pub mod sizes;
pub mod tiles;

pub use decode::{Limits, decode, media_type};
pub use error::Error;
pub use picture::{Picture, sha256};
pub use resize::{Filter, resize, within};
