//! The windows of Whisper: 30 seconds, one after the other, each from the end of the last complete segment. The steps are those of Whisper's
//! reference implementation.

use mlx_audio::{FRAMES_PER_SECOND, LogMel, WINDOW_FRAMES};

use super::options::{Timed, TranscriptionOptions, Translate};
use super::recognizer::{Progress, Recognizer, failure};
use super::segment::Segment;
use super::words::{Word, words_of};
use crate::engine::{Engine, Event, RequestOptions, Task};
use crate::error::{Error, Result};
use crate::speech::{
    AudioFeatures, Cut, SpeechTokens, SpeechWindow, WindowResult, cut, language_name, split_words,
};

/// The features of a file, and the position of the next window.
pub(super) struct Windows {
    engine: Engine,
    audio: LogMel,
    options: TranscriptionOptions,
    base: RequestOptions,
    /// The token of the language, once it is known.
    language: Option<u32>,
    /// The tokens before the next window. They become its prompt.
    previous: Vec<u32>,
    /// The first frame of the next window.
    seek: usize,
    segments: usize,
    /// The end of the last spoken word in seconds.
    spoken: f64,
    /// The result of this window, before its last event.
    result: Option<Box<WindowResult>>,
}

impl Windows {
    /// Begins at the start of a file. The options were checked.
    pub(super) fn new(
        engine: &Engine,
        audio: LogMel,
        options: TranscriptionOptions,
        base: RequestOptions,
    ) -> Result<Self> {
        let folder = engine.folder();
        let speech = folder.speech()?;
        let bins = engine.spec().whisper.map_or(0, |whisper| whisper.mel_bins);
        if audio.bins() != bins {
            return Err(Error::Internal(format!("features of {} bins; the model has {bins}", audio.bins())));
        }
        let previous = match options.prompt.as_deref().map(str::trim) {
            Some(prompt) if !prompt.is_empty() => {
                let mut tokens = folder.tokenizer.encode(&format!(" {prompt}"), false)?;
                tokens.retain(|token| *token < speech.end);
                tokens
            }
            _ => Vec::new(),
        };
        Ok(Self {
            language: options.language.as_deref().and_then(|code| speech.language(code)),
            base: RequestOptions { task: Task::Transcribe, ..base },
            engine: engine.clone(),
            audio,
            options,
            previous,
            seek: 0,
            segments: 0,
            spoken: 0.0,
            result: None,
        })
    }

    /// Returns the code of the spoken language, once it is known.
    fn spoken_language(&self) -> Option<&str> {
        let speech = self.engine.folder().speech().ok()?;
        if !speech.is_multilingual() {
            return Some("en");
        }
        speech.code(self.language?)
    }

    /// Returns the prompt of the next window: the end of the previous text, then the language and the task.
    fn prompt(&self, speech: &SpeechTokens) -> Vec<u32> {
        let mut prompt = Vec::new();
        if let Some(previous) = speech.previous.filter(|_| !self.previous.is_empty()) {
            let most = self.engine.spec().context_length / 2 - 1;
            prompt.push(previous);
            prompt.extend(&self.previous[self.previous.len().saturating_sub(most)..]);
        }
        prompt.push(speech.start);
        if speech.is_multilingual() {
            prompt.extend(self.language);
            let is_translation = self.options.translate == Translate::ToEnglish;
            prompt.push(if is_translation { speech.translate } else { speech.transcribe });
        }
        prompt
    }

    /// Takes the result of a window. Returns its segments, and moves to the next window.
    fn segments(&mut self, result: &WindowResult) -> Result<Vec<Segment>> {
        if let Some((token, probability)) = result.language {
            let code = self.engine.folder().speech()?.code(token).unwrap_or_default();
            tracing::debug!(language = code, probability, "detected the language");
            self.language = Some(token);
        }
        let (start, size) = (self.seek, self.window_frames());
        if self.options.thresholds.is_silence(result) {
            self.advance(size);
            return Ok(Vec::new());
        }
        let engine = self.engine.clone();
        let folder = engine.folder();
        let speech = folder.speech()?;
        let mut cut = cut(&result.tokens, speech.first_timestamp, size);
        let words = self.words(result, &mut cut, speech);
        self.advance(cut.frames);
        let mut segments = Vec::new();
        for (part, words) in cut.parts.into_iter().zip(words) {
            let text: Vec<u32> = part.tokens.iter().copied().filter(|token| *token < speech.end).collect();
            let text = folder.tokenizer.decode(&text, true);
            // Text without a duration is a mistake of the model.
            if part.start >= part.end || text.trim().is_empty() {
                continue;
            }
            let offset = start as f64 / FRAMES_PER_SECOND as f64;
            self.previous.extend(&part.tokens);
            segments.push(Segment {
                id: self.segments,
                seek: start,
                start: offset + part.start,
                end: offset + part.end,
                text,
                tokens: part.tokens,
                temperature: result.temperature,
                avg_logprob: result.avg_logprob,
                compression_ratio: result.compression_ratio,
                no_speech_prob: result.no_speech_prob,
                words,
            });
            self.segments += 1;
        }
        // Text that was drawn at a high temperature is unlikely, and would mislead the next window.
        if !self.options.condition_on_previous || result.temperature > 0.5 {
            self.previous.clear();
        }
        Ok(segments)
    }

    /// Returns the words of each segment. Their times correct those of the segments and the start of the next window.
    fn words(&mut self, result: &WindowResult, cut: &mut Cut, speech: &SpeechTokens) -> Vec<Vec<Word>> {
        let Some(starts) = &result.starts else { return vec![Vec::new(); cut.parts.len()] };
        let tokens: Vec<u32> = cut.text(speech.end).collect();
        let spoken = self.spoken_language();
        let code = if self.options.translate == Translate::ToEnglish { Some("en") } else { spoken };
        let code = code.map(str::to_owned);
        let tokens = split_words(&self.engine.folder().tokenizer, &tokens, code.as_deref());
        let offset = self.seek as f64 / FRAMES_PER_SECOND as f64;
        let words = words_of(&mut cut.parts, tokens, starts, speech.end, (offset, &mut self.spoken));
        let last = words.iter().flatten().next_back().map(|word| word.end);
        if let Some(end) = last.or(cut.parts.last().map(|part| offset + part.end)) {
            self.spoken = end;
            let frame = (end * FRAMES_PER_SECOND as f64).round() as usize;
            if !cut.is_complete && frame > self.seek {
                cut.frames = (frame - self.seek).min(self.window_frames());
            }
        }
        words
    }

    /// Returns the frames of the file in the next window.
    fn window_frames(&self) -> usize {
        WINDOW_FRAMES.min(self.audio.frames() - self.seek)
    }

    /// Moves to the next window.
    fn advance(&mut self, frames: usize) {
        self.seek += frames;
        self.audio.release_before(self.seek);
    }
}

impl Recognizer for Windows {
    fn language(&self) -> Option<String> {
        let code = match self.options.translate {
            Translate::No => self.spoken_language().unwrap_or("en"),
            Translate::ToEnglish => "en",
        };
        Some(language_name(code).unwrap_or(code).to_owned())
    }

    fn duration(&self) -> f64 {
        self.audio.seconds()
    }

    fn position(&self) -> f64 {
        (self.seek.min(self.audio.frames())) as f64 / FRAMES_PER_SECOND as f64
    }

    fn bytes(&self) -> usize {
        self.audio.bytes()
    }

    fn next_part(&mut self) -> Result<Option<(Vec<u32>, RequestOptions)>> {
        if self.seek >= self.audio.frames() {
            return Ok(None);
        }
        let speech = self.engine.folder().speech()?;
        let window = SpeechWindow {
            features: AudioFeatures::from(self.audio.window(self.seek)),
            detects_language: speech.is_multilingual() && self.language.is_none(),
            temperatures: self.options.temperatures.clone(),
            thresholds: self.options.thresholds,
            aligned_frames: (self.options.timed != Timed::Segments).then(|| self.window_frames()),
        };
        Ok(Some((self.prompt(speech), RequestOptions { speech: Some(window), ..self.base.clone() })))
    }

    fn accept(&mut self, event: Event) -> Result<Progress> {
        match event {
            Event::Window(result) => {
                self.result = Some(result);
                Ok(Progress::default())
            }
            Event::Done(finished) => {
                let missing = || Error::Internal("a window ended without a result".into());
                let result =
                    self.result.take().ok_or_else(|| failure(&finished.reason).unwrap_or_else(missing))?;
                let segments = self.segments(&result)?;
                let delta = segments.iter().map(|segment| segment.text.as_str()).collect();
                Ok(Progress { delta, segments })
            }
            _ => Ok(Progress::default()),
        }
    }
}
