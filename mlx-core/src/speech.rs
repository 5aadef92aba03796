//! Speech recognition, as far as it needs no engine: tokens of Whisper models, the rules of their text, and requests for 30 seconds of audio.

mod compression;
mod features;
mod languages;
mod non_speech;
mod rules;
mod tokens;
mod window;

pub(crate) use compression::compression_ratio;
pub use features::AudioFeatures;
pub use languages::{language_code, language_name};
pub(crate) use rules::{DecodingRules, log_probability, probability};
pub use tokens::SpeechTokens;
pub(crate) use tokens::TIMESTAMPS_PER_SECOND;
pub use window::{FallbackThresholds, SpeechWindow, WindowResult};
