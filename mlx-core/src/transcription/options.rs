//! The options of a transcription.

use crate::error::{Error, Result};
use crate::speech::{FallbackThresholds, SpeechTokens, language_name};

/// The language of the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Translate {
    /// The spoken language.
    #[default]
    No,
    /// English.
    ToEnglish,
}

/// The parts of a transcript that have times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Timed {
    /// Only segments.
    #[default]
    Segments,
    /// Only words.
    Words,
    /// Segments and words.
    Both,
}

/// The options of a transcription.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscriptionOptions {
    /// The code of the spoken language. `None`: it is detected in the first 30 seconds.
    pub language: Option<String>,
    /// The language of the text.
    pub translate: Translate,
    /// Text before the first window: names, terms and a style that the transcript should follow.
    pub prompt: Option<String>,
    /// The temperatures of consecutive attempts for each window.
    pub temperatures: Vec<f32>,
    /// The thresholds for a failed attempt.
    pub thresholds: FallbackThresholds,
    /// Give the text so far to the model with each window.
    pub condition_on_previous: bool,
    /// The parts of the text that get times. Words take more work.
    pub timed: Timed,
}

impl Default for TranscriptionOptions {
    /// The defaults of the reference implementation.
    fn default() -> Self {
        Self {
            language: None,
            translate: Translate::No,
            prompt: None,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            thresholds: FallbackThresholds::default(),
            condition_on_previous: true,
            timed: Timed::Segments,
        }
    }
}

impl TranscriptionOptions {
    /// Checks the options that depend on the model.
    pub(super) fn check(&self, speech: &SpeechTokens) -> Result<()> {
        if !speech.is_multilingual() {
            if self.translate == Translate::ToEnglish {
                return Err(Error::request("model", "is English-only and cannot translate"));
            }
            return match self.language.as_deref() {
                None | Some("en") => Ok(()),
                Some(code) => {
                    Err(Error::request("language", format!("is {code}; the model is English-only")))
                }
            };
        }
        match self.language.as_deref() {
            Some(code) if speech.language(code).is_none() => {
                let name = language_name(code).unwrap_or(code);
                Err(Error::request("language", format!("is {name}, which the model does not know")))
            }
            _ => Ok(()),
        }
    }
}
