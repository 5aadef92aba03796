//! The segments of a transcript.

use super::words::Word;

/// A part of the text with its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// The number of earlier segments.
    pub id: usize,
    /// The start of its window or chunk, in frames of 10 ms.
    pub seek: usize,
    /// The start in seconds.
    pub start: f64,
    /// The end in seconds.
    pub end: f64,
    /// The text. It usually begins with a space.
    pub text: String,
    /// The tokens of text and timestamps.
    pub tokens: Vec<u32>,
    /// The temperature of the attempt that found it.
    pub temperature: f32,
    /// The mean log-probability of the tokens of its window or chunk.
    pub avg_logprob: f32,
    /// The compression ratio of the text of its window or chunk.
    pub compression_ratio: f32,
    /// The probability that its window has no speech. Qwen3-ASR has none; there it is 0.
    pub no_speech_prob: f32,
    /// The words, if their times were requested.
    pub words: Vec<Word>,
}
