//! Errors of decoding and resizing.

/// The reason why a picture is rejected. The messages are meant for the sender of the picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is longer than the limit.
    #[error("the picture has {found} bytes; the limit is {limit}")]
    Bytes {
        /// Bytes of the file.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The header claims more pixels than the limit, or none.
    #[error("the picture has {width} x {height} pixels; the number of pixels must be between 1 and {limit}")]
    Pixels {
        /// Width in the header.
        width: u32,
        /// Height in the header.
        height: u32,
        /// The limit for width times height.
        limit: u64,
    },
    /// The file's format is not supported.
    #[error("the picture is not a png, jpeg, webp or gif file")]
    Format,
    /// The file is damaged, or decoding it takes too much memory.
    #[error("the picture cannot be decoded: {0}")]
    Damaged(String),
    /// The model family's resize rule has no size for this aspect ratio.
    #[error("cannot resize a picture of {width} x {height} pixels for the model: {reason}")]
    Shape {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// The reason.
        reason: &'static str,
    },
    /// A model's resize rule gives more pixels than a picture may have.
    #[error("the picture would be resized to {width} x {height} pixels, above the limit of {limit}: {rule}")]
    Resized {
        /// The width from the rule, in pixels.
        width: u32,
        /// The height from the rule, in pixels.
        height: u32,
        /// The limit for width times height.
        limit: u64,
        /// The file and key of the rule.
        rule: String,
    },
}
