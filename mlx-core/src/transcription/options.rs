//! The options of a transcription.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::processor::AudioProcessor;
use crate::speech::{FallbackThresholds, SpeechTokens, language_name, recognized_language};

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
    /// The code of the spoken language. `None`: Whisper detects it in the first 30 seconds, Qwen3-ASR in each chunk.
    pub language: Option<String>,
    /// The language of the text.
    pub translate: Translate,
    /// Names, terms and a style that the transcript should follow: for Whisper the text before the first window, for Qwen3-ASR the context of
    /// each chunk.
    pub prompt: Option<String>,
    /// The temperatures of consecutive attempts for each window. Qwen3-ASR uses the first one.
    pub temperatures: Vec<f32>,
    /// The thresholds for a failed attempt.
    pub thresholds: FallbackThresholds,
    /// Give the text so far to Whisper with each window. Qwen3-ASR never gets it.
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
    ///
    /// # Errors
    /// Fails if the model does not transcribe, or does not support an option.
    pub fn check(&self, engine: &Engine) -> Result<()> {
        if engine.spec().whisper.is_some() {
            return self.check_for_whisper(engine.folder().speech()?);
        }
        if !engine.audio_processor().is_ok_and(AudioProcessor::transcribes) {
            let message = "recognizes no speech; use Whisper or Qwen3-ASR, or send input_audio in a chat to a model that hears";
            return Err(Error::request("model", message));
        }
        if self.translate == Translate::ToEnglish {
            return Err(Error::request(
                "model",
                "transcribes but does not translate; use a multilingual Whisper model",
            ));
        }
        if self.timed != Timed::Segments {
            let message = "cannot have word: the model gives no times of words; use a Whisper model";
            return Err(Error::request("timestamp_granularities", message));
        }
        let Some(code) = self.language.as_deref() else { return Ok(()) };
        recognized_language(code).map(drop).map_err(|known| {
            let name = language_name(code).unwrap_or(code);
            Error::request("language", format!("is {name}, which the model does not know; it knows {known}"))
        })
    }

    fn check_for_whisper(&self, speech: &SpeechTokens) -> Result<()> {
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
