//! Speech recognition, as far as it needs no engine: tokens of Whisper models, the rules of their text, requests for 30 seconds of audio, and
//! the answers of Qwen3-ASR.

mod alignment;
mod compression;
mod features;
mod languages;
mod non_speech;
mod recognized_languages;
mod rules;
mod segments;
mod tokens;
mod transcript_reader;
mod window;
mod words;

pub(crate) use alignment::AlignmentMatrix;
pub(crate) use compression::compression_ratio;
pub use features::AudioFeatures;
pub use languages::{language_code, language_name};
pub(crate) use recognized_languages::{needs_space, recognized_language};
pub(crate) use rules::{DecodingRules, log_probability, probability};
pub(crate) use segments::{Cut, Part, cut};
pub use tokens::SpeechTokens;
pub(crate) use tokens::TIMESTAMPS_PER_SECOND;
pub(crate) use transcript_reader::{TranscriptReader, answer_in};
pub use window::{FallbackThresholds, SpeechWindow, WindowResult};
pub(crate) use words::{TimedWord, WordTokens, merge_punctuation, split_words};

/// The chat template of Qwen3-ASR: the context of a recording is the system message, which is always there.
pub(crate) const QWEN3_ASR_TEMPLATE: &str = include_str!("speech/qwen3_asr.jinja");
