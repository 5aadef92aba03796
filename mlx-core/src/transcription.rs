//! Transcription of files, for all front ends: windows of 30 seconds, one after the other, each from the end of the last complete segment.
//! The steps are those of Whisper's reference implementation.

mod formats;
mod options;
mod words;

use mlx_audio::{FRAMES_PER_SECOND, LogMel, WINDOW_FRAMES};

use crate::engine::{Engine, Event, FinishReason, GenerationRequest, RequestOptions, Task, Usage};
use crate::error::{Error, Result};
use crate::speech::{
    AudioFeatures, Cut, SpeechTokens, SpeechWindow, WindowResult, cut, language_name, split_words,
};
pub use formats::{Transcript, TranscriptFormat};
pub use options::{Timed, TranscriptionOptions, Translate};
pub use words::Word;
use words::words_of;

/// A part of the text with its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// The number of earlier segments.
    pub id: usize,
    /// The start of its window, in frames of 10 ms.
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
    /// The mean log-probability of the tokens of its window.
    pub avg_logprob: f32,
    /// The compression ratio of the text of its window.
    pub compression_ratio: f32,
    /// The probability that its window has no speech.
    pub no_speech_prob: f32,
    /// The words, if their times were requested.
    pub words: Vec<Word>,
}

/// The transcription of a file. For each window, [`next_request`](Self::next_request) returns the request and [`accept`](Self::accept) takes
/// its result.
pub struct Transcription {
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
    usage: Usage,
}

impl Transcription {
    /// Begins to transcribe a file. Of `base`, only the client, the priority and the seed apply.
    pub fn new(
        engine: &Engine,
        audio: LogMel,
        options: TranscriptionOptions,
        base: &RequestOptions,
    ) -> Result<Self> {
        let folder = engine.folder();
        let speech = folder.speech()?;
        options.check(speech)?;
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
            base: RequestOptions {
                task: Task::Transcribe,
                client: base.client,
                priority: base.priority,
                sampling: base.sampling.clone(),
                exact: base.exact,
                ..RequestOptions::default()
            },
            engine: engine.clone(),
            audio,
            options,
            previous,
            seek: 0,
            segments: 0,
            spoken: 0.0,
            usage: Usage::default(),
        })
    }

    /// Returns the code of the language, once it is known.
    pub fn language(&self) -> Option<&str> {
        let speech = self.engine.folder().speech().ok()?;
        if !speech.is_multilingual() {
            return Some("en");
        }
        speech.code(self.language?)
    }

    /// Returns the duration of the file in seconds.
    pub fn duration(&self) -> f64 {
        self.audio.seconds()
    }

    /// Returns the seconds of audio that are complete.
    pub fn position(&self) -> f64 {
        (self.seek.min(self.audio.frames())) as f64 / FRAMES_PER_SECOND as f64
    }

    /// Returns the token counts of all windows so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns the bytes of the features in memory. They become fewer with each window.
    pub fn bytes(&self) -> usize {
        self.audio.bytes()
    }

    /// Returns the transcript with these segments.
    pub fn transcript(&self, segments: Vec<Segment>) -> Transcript {
        let (task, code) = match self.options.translate {
            Translate::No => ("transcribe", self.language().unwrap_or("en")),
            Translate::ToEnglish => ("translate", "en"),
        };
        let language = language_name(code).unwrap_or(code).to_owned();
        let timed = self.options.timed;
        Transcript { task, language, duration: self.duration(), segments, timed }
    }

    /// Returns the request for the next window. `None` at the end of the file.
    pub fn next_request(&self) -> Result<Option<GenerationRequest>> {
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
        let options = RequestOptions { speech: Some(window), ..self.base.clone() };
        self.engine.request(self.prompt(speech), &options).map(Some)
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
    pub fn accept(&mut self, result: &WindowResult, usage: &Usage) -> Result<Vec<Segment>> {
        self.usage.prompt_tokens += usage.prompt_tokens;
        self.usage.completion_tokens += usage.completion_tokens;
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
        let spoken = self.language();
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

    /// Runs the next window and waits for its segments. `None` at the end of the file.
    pub fn next_segments(&mut self) -> Result<Option<Vec<Segment>>> {
        let Some(request) = self.next_request()? else { return Ok(None) };
        let mut result = None;
        let finished = self.engine.submit(request)?.finish(|event| {
            if let Event::Window(window) = event {
                result = Some(window);
            }
            Ok::<(), Error>(())
        })?;
        self.accept_end(result.map(|it| *it), &finished.reason, &finished.usage).map(Some)
    }

    /// Takes the end of a window: its result, if it has one, or the reason why not.
    pub fn accept_end(
        &mut self,
        result: Option<WindowResult>,
        reason: &FinishReason,
        usage: &Usage,
    ) -> Result<Vec<Segment>> {
        match (result, reason) {
            (Some(result), _) => self.accept(&result, usage),
            (None, FinishReason::Cancelled) => Err(Error::Cancelled),
            (None, FinishReason::Error(message)) => Err(Error::EngineStopped(message.clone())),
            (None, _) => Err(Error::Internal("a window ended without a result".into())),
        }
    }
}
