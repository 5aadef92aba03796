//! Why a picture is not taken.

/// Why a picture is not taken. The sentences are meant for the sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is longer than the limit.
    #[error("the picture has {found} bytes; at most {limit} are taken")]
    Bytes {
        /// Bytes of the file.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The header claims more pixels than the limit, or none.
    #[error("the picture has {width} x {height} pixels; 1 to {limit} are taken")]
    Pixels {
        /// Width in the header.
        width: u32,
        /// Height in the header.
        height: u32,
        /// The limit for width times height.
        limit: u64,
    },
    /// The file is in no format that is read.
    #[error("the picture is not a png, jpeg, webp or gif file")]
    Format,
    /// The file is damaged, or decoding it takes too much memory.
    #[error("the picture cannot be decoded: {0}")]
    Damaged(String),
    /// A family's rule has no size for this shape.
    #[error("a picture of {width} x {height} pixels has no size that the model takes: {reason}")]
    Shape {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// What stands against it.
        reason: &'static str,
    },
    /// A model's rule asks for more pixels than a picture may have.
    #[error("the picture would get {width} x {height} pixels, more than {limit}: {rule}")]
    Resized {
        /// The width that the rule gives, in pixels.
        width: u32,
        /// The height.
        height: u32,
        /// The limit for width times height.
        limit: u64,
        /// Where the rule stands.
        rule: String,
    },
}
