//! Decoded audio: features for Whisper, samples for Qwen3-ASR.

use mlx_audio::{Limits, LogMel, Recording};

use crate::engine::Engine;

/// The audio of a file.
pub enum SpeechAudio {
    /// Whisper's features.
    Features(LogMel),
    /// Samples, from which chunks are cut.
    Samples(Recording),
}

impl SpeechAudio {
    /// Decodes a file for the model of this engine. Calls `check` regularly with the bytes that the audio takes so far. It may end the work by
    /// an error.
    ///
    /// # Errors
    /// Fails if the file is damaged, too long, or in another format.
    pub fn of_file(
        engine: &Engine,
        file: impl AsRef<[u8]> + Send + Sync,
        check: &mut dyn FnMut(usize) -> Result<(), mlx_audio::Error>,
    ) -> Result<Self, mlx_audio::Error> {
        let limits = Limits::default();
        match engine.spec().whisper {
            Some(whisper) => LogMel::of_file(file, whisper.mel_bins, &limits, check).map(Self::Features),
            None => Recording::of_file(file, &limits, check).map(Self::Samples),
        }
    }

    /// Returns the bytes of the audio in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Features(features) => features.bytes(),
            Self::Samples(recording) => recording.bytes(),
        }
    }
}

impl From<LogMel> for SpeechAudio {
    fn from(features: LogMel) -> Self {
        Self::Features(features)
    }
}

impl From<Recording> for SpeechAudio {
    fn from(recording: Recording) -> Self {
        Self::Samples(recording)
    }
}
