//! Transcribes files for all front ends. A file is split into parts, and each part is one request: a window for Whisper, a chunk for Qwen3-ASR.

mod audio;
mod chunks;
mod formats;
mod options;
mod recognizer;
mod segment;
mod windows;
mod words;

use crate::engine::{Engine, Event, GenerationRequest, RequestOptions, Usage};
use crate::error::Result;
pub use audio::SpeechAudio;
use chunks::Chunks;
pub use formats::{Transcript, TranscriptFormat};
pub use options::{Timed, TranscriptionOptions, Translate};
pub use recognizer::Progress;
use recognizer::Recognizer;
pub use segment::Segment;
use windows::Windows;
pub use words::Word;

/// The transcription of a file. For each part, [`next_request`](Self::next_request) returns the request and [`accept`](Self::accept) takes its
/// events.
pub struct Transcription {
    engine: Engine,
    recognizer: Box<dyn Recognizer>,
    options: TranscriptionOptions,
    usage: Usage,
}

impl Transcription {
    /// Begins to transcribe a file. Of `base`, only the client, the id, the priority, the seed and `exact` apply.
    pub fn new(
        engine: &Engine,
        audio: impl Into<SpeechAudio>,
        options: TranscriptionOptions,
        base: &RequestOptions,
    ) -> Result<Self> {
        options.check(engine)?;
        let base = RequestOptions {
            client: base.client,
            log_id: base.log_id.clone(),
            priority: base.priority,
            sampling: base.sampling.clone(),
            exact: base.exact,
            ..RequestOptions::default()
        };
        let recognizer: Box<dyn Recognizer> = match audio.into() {
            SpeechAudio::Features(audio) => Box::new(Windows::new(engine, audio, options.clone(), base)?),
            SpeechAudio::Samples(recording) => Box::new(Chunks::new(engine, recording, &options, base)?),
        };
        Ok(Self { engine: engine.clone(), recognizer, options, usage: Usage::default() })
    }

    /// Returns the duration of the file in seconds.
    pub fn duration(&self) -> f64 {
        self.recognizer.duration()
    }

    /// Returns the seconds of audio that are complete.
    pub fn position(&self) -> f64 {
        self.recognizer.position()
    }

    /// Returns the token counts of all parts so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns the bytes of the audio in memory. They become fewer with each part.
    pub fn bytes(&self) -> usize {
        self.recognizer.bytes()
    }

    /// Returns the transcript with these segments.
    pub fn transcript(&self, segments: Vec<Segment>) -> Transcript {
        let task = match self.options.translate {
            Translate::No => "transcribe",
            Translate::ToEnglish => "translate",
        };
        let language = self.recognizer.language().unwrap_or_else(|| "unknown".to_owned());
        Transcript { task, language, duration: self.duration(), segments, timed: self.options.timed }
    }

    /// Returns the request for the next part. `None` at the end of the file.
    pub fn next_request(&mut self) -> Result<Option<GenerationRequest>> {
        let Some((prompt, options)) = self.recognizer.next_part()? else { return Ok(None) };
        self.engine.request(prompt, &options).map(Some)
    }

    /// Takes an event of the request for this part. After [`Event::Done`], the next part is due.
    ///
    /// # Errors
    /// Returns the reason if the part has failed.
    pub fn accept(&mut self, event: Event) -> Result<Progress> {
        if let Event::Done(finished) = &event {
            self.usage.prompt_tokens += finished.usage.prompt_tokens;
            self.usage.completion_tokens += finished.usage.completion_tokens;
        }
        self.recognizer.accept(event)
    }

    /// Runs the next part and waits for its segments. `None` at the end of the file.
    pub fn next_segments(&mut self) -> Result<Option<Vec<Segment>>> {
        let Some(request) = self.next_request()? else { return Ok(None) };
        let mut segments = Vec::new();
        for event in self.engine.submit(request)? {
            segments.extend(self.accept(event)?.segments);
        }
        Ok(Some(segments))
    }
}
