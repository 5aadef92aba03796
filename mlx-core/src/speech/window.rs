//! Requests for the text of a window of 30 seconds, and their results.

use serde::{Deserialize, Serialize};

use super::features::AudioFeatures;

/// A window of audio to recognize. The prompt of its request has the previous text and the tokens of the task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpeechWindow {
    /// The features of 30 seconds.
    pub features: AudioFeatures,
    /// True to detect the language, whose token is then inserted into the prompt after the token that starts the transcript.
    pub detects_language: bool,
    /// The temperatures of consecutive attempts. The next one is tried if an attempt fails; the result of the last one counts.
    pub temperatures: Vec<f32>,
    /// The thresholds for a failed attempt.
    pub thresholds: FallbackThresholds,
    /// The frames of the file in the window, to which words are aligned. `None`: words get no times.
    pub aligned_frames: Option<usize>,
}

/// The thresholds for a failed attempt. `None` disables one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FallbackThresholds {
    /// An attempt fails if the compression ratio of its text is higher: it repeats itself.
    pub compression_ratio: Option<f32>,
    /// An attempt fails if the mean log-probability of its tokens is lower.
    pub logprob: Option<f32>,
    /// A window is silence if the probability of no speech is higher and the mean log-probability is below its threshold.
    pub no_speech: Option<f32>,
}

impl Default for FallbackThresholds {
    /// The thresholds of the reference implementation.
    fn default() -> Self {
        Self { compression_ratio: Some(2.4), logprob: Some(-1.0), no_speech: Some(0.6) }
    }
}

/// The text of a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowResult {
    /// The tokens of text and timestamps, without the end token.
    pub tokens: Vec<u32>,
    /// The token of the detected language and its probability among all languages, if the request asked for it.
    pub language: Option<(u32, f32)>,
    /// The temperature of the attempt.
    pub temperature: f32,
    /// The mean log-probability of the tokens and the end token.
    pub avg_logprob: f32,
    /// The compression ratio of the text.
    pub compression_ratio: f32,
    /// The probability that the window has no speech.
    pub no_speech_prob: f32,
    /// The starts of the text tokens of all segments, and of the end, in steps of timestamps. `None` unless words are aligned.
    pub starts: Option<Vec<u32>>,
}

impl FallbackThresholds {
    /// Returns true if the next temperature should be tried.
    pub(crate) fn rejects(&self, result: &WindowResult) -> bool {
        let repeats = self.compression_ratio.is_some_and(|most| result.compression_ratio > most);
        (repeats || self.is_unlikely(result)) && !self.is_silence(result)
    }

    /// Returns true if the window has no speech.
    pub fn is_silence(&self, result: &WindowResult) -> bool {
        let is_quiet = self.no_speech.is_some_and(|most| result.no_speech_prob > most);
        is_quiet && (self.logprob.is_none() || self.is_unlikely(result))
    }

    fn is_unlikely(&self, result: &WindowResult) -> bool {
        self.logprob.is_some_and(|least| result.avg_logprob < least)
    }
}
