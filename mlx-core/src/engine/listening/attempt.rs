//! An attempt to find the text of a window, at one temperature.

use crate::error::Result;
use crate::folder::ModelFolder;
use crate::model::{DecoderState, EncodedAudio, Whisper};
use crate::sampling::{Sampler, SamplingOptions, SamplingParams, Scratch, TokenHistory};
use crate::speech::{DecodingRules, SpeechTokens, WindowResult, compression_ratio, log_probability};

/// The prompt of a window after the decoder has read it.
#[derive(Clone)]
pub(super) struct ReadPrompt {
    pub(super) tokens: Vec<u32>,
    pub(super) state: DecoderState,
    /// The logits after the prompt.
    pub(super) logits: Vec<f32>,
    pub(super) no_speech_prob: f32,
    /// The detected language and its probability.
    pub(super) language: Option<(u32, f32)>,
}

/// An attempt while tokens are drawn.
pub(super) struct Attempt {
    temperature: f32,
    timestamps: bool,
    sampler: Sampler,
    history: TokenHistory,
    state: DecoderState,
    logits: Vec<f32>,
    /// The sum of the log-probabilities of all drawn tokens.
    sum: f64,
    most_tokens: usize,
}

impl Attempt {
    /// Begins an attempt. The draws of different attempts are independent.
    pub(super) fn new(
        prompt: &ReadPrompt,
        seed: u64,
        temperature: f32,
        folder: &ModelFolder,
        context: usize,
    ) -> Result<Self> {
        let options = SamplingOptions {
            temperature: Some(temperature),
            seed: Some(seed),
            ..SamplingOptions::default()
        };
        let params = SamplingParams::resolve(&options, &SamplingOptions::default())?;
        let tokens = folder.speech()?;
        Ok(Self {
            temperature,
            timestamps: prompt.tokens.last() != Some(&tokens.no_timestamps),
            sampler: Sampler::new(params, None, &folder.token_table),
            history: TokenHistory::new(prompt.tokens.clone()),
            state: prompt.state.clone(),
            logits: prompt.logits.clone(),
            sum: 0.0,
            // Half of the context is for the previous text.
            most_tokens: (context / 2).min(context - prompt.tokens.len()),
        })
    }

    /// Draws a token. Returns true if the text has ended.
    pub(super) fn step(
        &mut self,
        model: &Whisper,
        audio: &EncodedAudio,
        tokens: &SpeechTokens,
        scratch: &mut Scratch,
    ) -> Result<bool> {
        DecodingRules(tokens).apply(self.history.generated(), self.timestamps, &mut self.logits);
        let token = self.sampler.draw_row(&self.logits, &self.history, scratch)?.token;
        self.sum += log_probability(&self.logits, token);
        if token == tokens.end {
            return Ok(true);
        }
        self.history.push(token);
        if self.history.generated().len() >= self.most_tokens {
            return Ok(true);
        }
        let rows = model.decode(&[token], &[0], audio, &mut self.state)?;
        self.logits.clear();
        self.logits.extend_from_slice(rows.values()?);
        Ok(false)
    }

    /// Returns the number of drawn tokens.
    pub(super) fn drawn(&self) -> usize {
        self.history.generated().len() + 1
    }

    /// Returns the result.
    pub(super) fn result(&self, prompt: &ReadPrompt, folder: &ModelFolder, end: u32) -> WindowResult {
        let tokens = self.history.generated().to_vec();
        let text: Vec<u32> = tokens.iter().copied().filter(|token| *token < end).collect();
        let text = folder.tokenizer.decode(&text, true);
        WindowResult {
            avg_logprob: (self.sum / (tokens.len() + 1) as f64) as f32,
            compression_ratio: compression_ratio(text.trim()),
            no_speech_prob: prompt.no_speech_prob,
            language: prompt.language,
            temperature: self.temperature,
            tokens,
            starts: None,
        }
    }
}
