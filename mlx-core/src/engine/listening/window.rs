//! A window of audio, from its request to its text.

use std::sync::Arc;
use std::time::Instant;

use super::aligning;
use super::attempt::{Attempt, ReadPrompt};
use crate::engine::admission::Submission;
use crate::engine::event::{Event, FinishReason, Finished};
use crate::engine::jobs::Job;
use crate::engine::options::Exactness;
use crate::engine::outlet::Outlet;
use crate::engine::usage::{Timings, Usage};
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::model::{EncodedAudio, EncoderPass, Whisper};
use crate::sampling::Scratch;
use crate::speech::{SpeechTokens, SpeechWindow, WindowResult, probability};

/// The tokens that a step draws. On all devices they take about as long as a decode step of a chat takes there.
const TOKENS_PER_STEP: usize = 4;

/// The parts of the engine that the steps of all windows use.
pub(super) struct Recognizer {
    pub(super) model: Whisper,
    pub(super) folder: Arc<ModelFolder>,
    /// The maximum number of tokens of a window, with its prompt.
    pub(super) context: usize,
    pub(super) scratch: Scratch,
}

/// A window and its progress.
pub(in crate::engine) struct Window {
    request: SpeechWindow,
    prompt: Vec<u32>,
    seed: u64,
    exactness: Exactness,
    outlet: Outlet,
    submitted: Instant,
    started: Option<Instant>,
    decoding: Option<Instant>,
    stage: Stage,
    drawn: usize,
    /// The number of the last step that it had.
    pub(super) last_step: u64,
    /// True if a step panicked.
    has_panicked: bool,
}

/// The progress of a window.
enum Stage {
    Waiting,
    Encoding(EncoderPass),
    Encoded(EncodedAudio),
    Decoding(Box<Decoding>),
    Aligning(Box<Decoding>, WindowResult),
}

struct Decoding {
    audio: EncodedAudio,
    prompt: ReadPrompt,
    attempt: Attempt,
    /// The index of the attempt.
    index: usize,
}

impl Window {
    pub(super) fn new(submission: Submission, last_step: u64) -> Result<Self> {
        let Submission { request, outlet } = submission;
        let missing = || Error::Internal("a request for speech has no audio".into());
        Ok(Self {
            request: request.speech.ok_or_else(missing)?,
            prompt: request.prompt,
            seed: request.params.seed,
            exactness: request.exactness,
            outlet,
            submitted: Instant::now(),
            started: None,
            decoding: None,
            stage: Stage::Waiting,
            drawn: 0,
            last_step,
            has_panicked: false,
        })
    }

    /// Starts again after the first panic of a step. Returns false after the second.
    pub(super) fn repeat_after_panic(&mut self) -> bool {
        self.reset();
        !std::mem::replace(&mut self.has_panicked, true)
    }

    /// Runs the next step: a part of the encoding, the prompt, or a few tokens. Returns the result after the last one.
    pub(super) fn step(&mut self, recognizer: &mut Recognizer) -> Result<Option<WindowResult>> {
        if self.started.is_none() {
            self.started = Some(Instant::now());
            self.outlet.sink.start();
        }
        let model = &recognizer.model;
        // If a step fails, the window starts again or ends.
        self.stage = match std::mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Waiting => {
                let mut pass = model.begin(self.request.features.values())?;
                encoded(model.advance(&mut pass)?, pass)
            }
            Stage::Encoding(mut pass) => encoded(model.advance(&mut pass)?, pass),
            Stage::Encoded(audio) => {
                let prompt = self.read_prompt(recognizer, &audio)?;
                self.decoding = Some(Instant::now());
                let attempt = self.attempt(&prompt, 0, recognizer)?;
                Stage::Decoding(Box::new(Decoding { audio, prompt, attempt, index: 0 }))
            }
            Stage::Decoding(decoding) => match self.draw(*decoding, recognizer)? {
                Drawn::More(decoding) => Stage::Decoding(decoding),
                Drawn::Result(decoding, result) => {
                    if self.request.aligned_frames.is_none() || self.request.thresholds.is_silence(&result) {
                        return Ok(Some(result));
                    }
                    Stage::Aligning(decoding, result)
                }
            },
            Stage::Aligning(decoding, mut result) => {
                result.starts = Some(self.starts(recognizer, &decoding, &result)?);
                return Ok(Some(result));
            }
        };
        Ok(None)
    }

    /// Detects the language if requested, and lets the decoder read the prompt.
    fn read_prompt(&self, recognizer: &Recognizer, audio: &EncodedAudio) -> Result<ReadPrompt> {
        let (model, speech) = (&recognizer.model, recognizer.folder.speech()?);
        let mut tokens = self.prompt.clone();
        let start = start_of(&tokens, speech)?;
        let mut language = None;
        if self.request.detects_language && speech.is_multilingual() {
            let rows = model.decode(&[speech.start], &[0], audio, &mut model.new_state())?;
            let detected = likeliest_language(rows.values()?, speech)?;
            tokens.insert(start + 1, detected.0);
            language = Some(detected);
        }
        let mut state = model.new_state();
        let rows = model.decode(&tokens, &[start, tokens.len() - 1], audio, &mut state)?;
        let (values, width) = (rows.values()?, rows.width());
        let (at_start, at_end) = values.split_at(width);
        let no_speech_prob = speech.no_speech.map_or(0.0, |token| probability(at_start, token));
        Ok(ReadPrompt { tokens, state, logits: at_end.to_vec(), no_speech_prob, language })
    }

    fn attempt(&self, prompt: &ReadPrompt, index: usize, recognizer: &Recognizer) -> Result<Attempt> {
        let temperature = self.request.temperatures.get(index).copied().unwrap_or(0.0);
        let seed = self.seed.wrapping_add(index as u64);
        Attempt::new(prompt, seed, temperature, &recognizer.folder, recognizer.context)
    }

    /// Draws a few tokens. A failed attempt is followed by one at the next temperature.
    fn draw(&mut self, mut decoding: Decoding, recognizer: &mut Recognizer) -> Result<Drawn> {
        let Recognizer { model, folder, scratch, .. } = &mut *recognizer;
        let speech = folder.speech()?;
        for _ in 0..TOKENS_PER_STEP {
            if !decoding.attempt.step(model, &decoding.audio, speech, scratch)? {
                continue;
            }
            self.drawn += decoding.attempt.drawn();
            let result = decoding.attempt.result(&decoding.prompt, folder, speech.end);
            decoding.index += 1;
            if decoding.index >= self.request.temperatures.len() || !self.request.thresholds.rejects(&result)
            {
                return Ok(Drawn::Result(Box::new(decoding), result));
            }
            tracing::debug!(?result, "an attempt failed; the next one has a higher temperature");
            decoding.attempt = self.attempt(&decoding.prompt, decoding.index, recognizer)?;
            break;
        }
        Ok(Drawn::More(Box::new(decoding)))
    }

    /// Aligns the words of the result.
    fn starts(
        &self,
        recognizer: &Recognizer,
        decoding: &Decoding,
        result: &WindowResult,
    ) -> Result<Vec<u32>> {
        let speech = recognizer.folder.speech()?;
        let prompt = &decoding.prompt.tokens[start_of(&decoding.prompt.tokens, speech)?..];
        let frames = self.request.aligned_frames.unwrap_or_default();
        aligning::starts(&recognizer.model, &decoding.audio, prompt, speech, (result, frames))
    }

    /// Sends the result.
    pub(super) fn deliver(&self, result: WindowResult) {
        // The client may have disconnected, which is not an error.
        self.outlet.sink.send(Event::Window(Box::new(result)));
    }
}

impl Job for Window {
    fn is_cancelled(&self) -> bool {
        self.outlet.canceller.is_cancelled() || self.outlet.sink.is_closed()
    }

    fn reset(&mut self) {
        self.stage = Stage::Waiting;
    }

    fn finish(self, reason: FinishReason) -> (Usage, Timings) {
        let usage =
            Usage { prompt_tokens: self.prompt.len(), completion_tokens: self.drawn, ..Usage::default() };
        let started = self.started.unwrap_or_else(Instant::now);
        let decoding = self.decoding.unwrap_or_else(Instant::now);
        let timings = Timings {
            queue: started.duration_since(self.submitted).as_secs_f64(),
            prefill: decoding.duration_since(started).as_secs_f64(),
            decode: decoding.elapsed().as_secs_f64(),
        };
        let done = Finished { reason, delta: String::new(), usage, timings, exactness: self.exactness };
        // The client may have disconnected, which is not an error.
        self.outlet.sink.send(Event::Done(done));
        (usage, timings)
    }
}

/// Returns the stage after a step of the encoding. Only the last step returns encoded audio.
fn encoded(audio: Option<EncodedAudio>, pass: EncoderPass) -> Stage {
    audio.map_or(Stage::Encoding(pass), Stage::Encoded)
}

/// The outcome of a step that draws tokens.
enum Drawn {
    More(Box<Decoding>),
    Result(Box<Decoding>, WindowResult),
}

/// Returns the index of the token that starts the transcript.
fn start_of(prompt: &[u32], speech: &SpeechTokens) -> Result<usize> {
    let missing = || Error::request("prompt", "has no token that starts a transcript");
    prompt.iter().rposition(|token| *token == speech.start).ok_or_else(missing)
}

/// Returns the token of the likeliest language, and its probability among all languages.
fn likeliest_language(logits: &[f32], speech: &SpeechTokens) -> Result<(u32, f32)> {
    let logit = |token: &u32| logits.get(*token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let all: Vec<f32> = speech.languages.iter().map(|(_, token)| logit(token)).collect();
    let place =
        all.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1).then(other.0.cmp(&one.0)));
    let (place, top) = place.ok_or_else(|| Error::Internal("a model without languages".into()))?;
    if !top.is_finite() {
        return Err(Error::NotFinite("the logit of a language"));
    }
    Ok((speech.languages[place].1, probability(&all, place as u32)))
}
