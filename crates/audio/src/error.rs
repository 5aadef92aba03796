//! Errors of decoding.

/// The reason why a file is rejected. The messages are meant for the sender of the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is longer than the limit.
    #[error("the audio file has {found} bytes; the limit is {limit}")]
    Bytes {
        /// Bytes of the file.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The audio is longer than the limit.
    #[error("the audio is longer than the limit of {limit} seconds; split the file")]
    Seconds {
        /// The limit.
        limit: u32,
    },
    /// The file's format is not supported.
    #[error(
        "the file is not audio in a supported format: wav, flac, mp3, m4a or mp4 with aac, or ogg or webm with vorbis or opus"
    )]
    Format,
    /// The file's container is supported, but its codec is not.
    #[error(
        "the audio is encoded with {0}, which is not supported; convert the file to wav, flac, mp3, aac, vorbis or opus"
    )]
    Codec(String),
    /// The file has no audio.
    #[error("the file contains no audio")]
    Empty,
    /// The audio is too short for a single frame of features.
    #[error("the audio is shorter than a frame of 10 milliseconds")]
    Short,
    /// The file is damaged.
    #[error("the audio cannot be decoded: {0}")]
    Damaged(String),
    /// The file ends before the end that its header claims.
    #[error("the audio file is cut: it ends after {found} of {claimed} seconds")]
    Cut {
        /// The seconds that the file contains.
        found: u64,
        /// The seconds that its header claims.
        claimed: u64,
    },
    /// The caller cancelled it.
    #[error("the request was cancelled")]
    Cancelled,
}
