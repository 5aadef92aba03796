//! Transcription with Qwen3-ASR. The recording is cut into chunks, and each chunk is sent to the model as a chat request. The answer is the
//! text of the chunk.

use std::mem::take;
use std::slice;

use chat_format::text::NO_PAUSE;
use chat_format::{Audio, Message, Part, TemplateInput};
use mlx_audio::{FRAMES_PER_SECOND, Recording, SAMPLE_RATE};

use super::options::TranscriptionOptions;
use super::recognizer::{Progress, Recognizer, failure};
use super::segment::Segment;
use crate::chat::unexpanded_prompt;
use crate::engine::{Engine, Event, FinishReason, Finished, RequestOptions};
use crate::error::{Error, Result};
use crate::sampling::SamplingOptions;
use crate::speech::{TranscriptReader, answer_in, compression_ratio, needs_space, recognized_language};

/// The maximum seconds of a chunk. The reference implementation uses this length for texts with times.
const LONGEST: u32 = 180;

/// The token limit of an answer: a fixed number plus a number per second. Fast speech in any language has fewer tokens, so only a model that
/// repeats itself reaches the limit.
const ANSWER_TOKENS: usize = 32;
const TOKENS_PER_SECOND: usize = 20;

/// A recording and the state of its current chunk.
pub(super) struct Chunks {
    engine: Engine,
    recording: Recording,
    /// The options of each request, without its audio.
    base: RequestOptions,
    temperature: f32,
    /// The tokens of the prompt, with one placeholder for the audio.
    prompt: Vec<u32>,
    /// The maximum seconds of a chunk.
    longest: u32,
    /// True if the request names the language. Answers then have no language before the text.
    is_forced: bool,
    language: Option<String>,
    /// The number of segments so far.
    segments: usize,
    /// The last character of their text.
    last: Option<char>,
    answer: Answer,
}

/// The part of the answer that has arrived.
#[derive(Default)]
struct Answer {
    /// The samples of the chunk.
    samples: usize,
    reader: TranscriptReader,
    text: String,
    tokens: Vec<u32>,
    logprob: f32,
}

impl Chunks {
    /// Encodes the prompt that all chunks share. The caller has checked the options.
    pub(super) fn new(
        engine: &Engine,
        recording: Recording,
        options: &TranscriptionOptions,
        base: RequestOptions,
    ) -> Result<Self> {
        let language = options.language.as_deref().and_then(|code| recognized_language(code).ok());
        let audio = Message { parts: vec![Part::Audio(Audio::file(Vec::new()))], ..Message::user("") };
        // The model was trained with a system message, also an empty one.
        let context = Message::system(options.prompt.as_deref().unwrap_or_default().trim());
        let input = TemplateInput {
            messages: vec![context, audio],
            add_generation_prompt: true,
            ..TemplateInput::default()
        };
        let begun = language.as_deref().map(answer_in).unwrap_or_default();
        let prompt = unexpanded_prompt(engine, &input, &begun, NO_PAUSE)?;
        let processor = engine.audio_processor()?;
        let places = prompt.iter().filter(|token| **token == processor.audio_token()).count();
        if places != 1 {
            let message = format!(
                "and the chat template have {places} placeholders of audio; there must be one, so remove such tokens from the text"
            );
            return Err(Error::request("prompt", message));
        }
        let temperature = options.temperatures.first().copied().unwrap_or_default();
        // Half of the context is for the text of the prompt and the answer.
        let rows = engine.spec().context_length / 2;
        Ok(Self {
            longest: processor.seconds_in(rows).clamp(1, LONGEST),
            base: RequestOptions {
                sampling: SamplingOptions { temperature: Some(temperature), ..base.sampling },
                logprobs: Some(0),
                is_message: true,
                ..base
            },
            engine: engine.clone(),
            recording,
            temperature,
            prompt,
            is_forced: language.is_some(),
            language,
            segments: 0,
            last: None,
            answer: Answer::default(),
        })
    }

    /// Appends text to the answer and returns it. Inserts a space between two chunks if their language uses spaces.
    fn add(&mut self, text: String) -> String {
        let Some(first) = text.chars().next() else { return text };
        let begins = self.answer.text.is_empty();
        let text = if begins && self.last.is_some_and(|last| needs_space(last, first)) {
            format!(" {text}")
        } else {
            text
        };
        self.answer.text.push_str(&text);
        text
    }

    /// Ends the chunk. Returns the last text and the segment. A chunk without speech has no segment.
    fn end(&mut self, finished: &Finished) -> Result<Progress> {
        if let Some(error) = failure(&finished.reason) {
            return Err(error);
        }
        let rest = self.answer.reader.push(&finished.delta) + &self.answer.reader.finish();
        let delta = self.add(rest);
        let answer = take(&mut self.answer);
        let start = self.recording.position();
        self.recording.advance(answer.samples);
        let end = self.recording.position();
        if finished.reason == FinishReason::Length {
            let repeated = finished.usage.repeated_tokens;
            tracing::warn!(start, end, repeated, "the text of a chunk reached its token limit");
        }
        if self.language.is_none() {
            self.language = answer.reader.language().map(str::to_owned);
        }
        let Some(last) = answer.text.chars().next_back() else { return Ok(Progress::default()) };
        self.last = Some(last);
        let segment = Segment {
            id: self.segments,
            seek: (start * FRAMES_PER_SECOND as f64) as usize,
            start,
            end,
            avg_logprob: answer.logprob / answer.tokens.len().max(1) as f32,
            tokens: answer.tokens,
            temperature: self.temperature,
            compression_ratio: compression_ratio(&answer.text),
            no_speech_prob: 0.0,
            text: answer.text,
            words: Vec::new(),
        };
        self.segments += 1;
        Ok(Progress { delta, segments: vec![segment] })
    }
}

impl Recognizer for Chunks {
    fn language(&self) -> Option<String> {
        self.language.as_deref().map(str::to_lowercase)
    }

    fn duration(&self) -> f64 {
        self.recording.seconds()
    }

    fn position(&self) -> f64 {
        self.recording.position()
    }

    fn bytes(&self) -> usize {
        self.recording.bytes()
    }

    fn next_part(&mut self) -> Result<Option<(Vec<u32>, RequestOptions)>> {
        let samples = self.recording.chunk(self.longest);
        if samples.is_empty() {
            return Ok(None);
        }
        let reader = if self.is_forced { TranscriptReader::of_text() } else { TranscriptReader::default() };
        self.answer = Answer { samples: samples.len(), reader, ..Answer::default() };
        let processor = self.engine.audio_processor()?;
        let clip =
            processor.clip_of(samples.to_vec()).map_err(|error| Error::request("file", error.to_string()))?;
        let prompt = processor.expanded(self.prompt.clone(), slice::from_ref(&clip))?;
        let seconds = samples.len().div_ceil(SAMPLE_RATE as usize);
        let max_tokens = Some(ANSWER_TOKENS + TOKENS_PER_SECOND * seconds);
        Ok(Some((prompt, RequestOptions { audio: vec![clip], max_tokens, ..self.base.clone() })))
    }

    fn accept(&mut self, event: Event) -> Result<Progress> {
        match event {
            Event::Token(token) => {
                self.answer.tokens.push(token.id);
                self.answer.logprob += token.logprob.map_or(0.0, |it| it.logprob);
                let text = self.answer.reader.push(&token.delta);
                Ok(Progress { delta: self.add(text), segments: Vec::new() })
            }
            Event::Done(finished) => self.end(&finished),
            _ => Ok(Progress::default()),
        }
    }
}
