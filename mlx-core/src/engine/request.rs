//! Requests from front ends to the engine.

use std::sync::Arc;

use chat_format::text::Detokenizer;
use chat_format::{ConstraintSpec, Pixels};
use serde::{Deserialize, Serialize};

use super::client::{Client, Priority};
use super::constraint::{Compiled, Grammars, Target, ThoughtLimit, check as check_constraint, check_form};
use super::drafters::Speculate;
use super::media::Media;
use super::options::Exactness;
use super::resume::Resume;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::model::ModelSpec;
use crate::processor::AudioClip;
use crate::sampling::{MAX_TOP_LOGPROBS, SamplingDefaults, SamplingOptions, SamplingParams};
use crate::sentence_transformers::Poolings;
use crate::speech::SpeechWindow;

/// The maximum number of stop strings of a request.
pub const MAX_STOP_STRINGS: usize = 64;

/// The maximum number of tokens of a text that the context does not limit.
const ENDLESS: usize = 1 << 30;

/// The computation that a request asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Generates the text after the prompt.
    #[default]
    Generate,
    /// Computes the log-probability of each prompt token; generates nothing.
    Score,
    /// Computes one vector for the prompt, as wide as the model's hidden states for each pooling; generates nothing.
    Embed(Poolings),
    /// Computes the logits of a cross-encoder's head for a pair of texts; generates nothing.
    Classify,
    /// Turns [`RequestOptions::speech`] into text. The prompt has the tokens before that text.
    Transcribe,
}

/// A request as a front end sends it. Absent fields take their defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "options that do not depend on each other")]
pub struct RequestOptions {
    /// The computation to run.
    pub task: Task,
    /// The pictures of the prompt, in order and in the size that the model expects; see [`Processor::resized`](crate::Processor::resized).
    /// The prompt contains one picture token for each of their rows.
    pub images: Vec<Pixels>,
    /// The audio clips of the prompt, in order; see [`AudioProcessor::clip`](crate::AudioProcessor::clip). The prompt contains one audio token
    /// for each of their rows.
    pub audio: Vec<AudioClip>,
    /// The window of audio of a [`Task::Transcribe`].
    pub speech: Option<SpeechWindow>,
    /// The sampling parameters.
    pub sampling: SamplingOptions,
    /// Defaults for the values of `sampling` that neither the request nor the checkpoint sets.
    pub sampling_defaults: SamplingDefaults,
    /// The maximum number of tokens to generate. `None`: until the model ends its text or the context is full.
    pub max_tokens: Option<usize>,
    /// Stop strings. The text ends before the first one that occurs.
    pub stop: Vec<String>,
    /// Continue after an end-of-sequence token.
    pub ignore_eos: bool,
    /// The number of alternatives to report with each token's log-probability. `None`: no log-probabilities are reported.
    pub logprobs: Option<usize>,
    /// Like `logprobs`, for the tokens of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// The priority in the queue.
    pub priority: Priority,
    /// The client. Clients share the running sequences fairly.
    pub client: Client,
    /// The id of the request in log lines about it. Empty: none.
    pub log_id: String,
    /// The number of first tokens that a context shift keeps when the text outgrows the model's context, along with the latest tokens. The
    /// answer then no longer depends on all of the earlier text. `None`: the text ends when the context is full.
    pub n_keep: Option<usize>,
    /// Compute bit-identical results regardless of concurrent requests. `None`: the engine's default.
    pub exact: Option<bool>,
    /// The source of drafts for the answer. Drafts affect only its speed. `None`: the engine's default.
    pub speculate: Option<Speculate>,
    /// A constraint on the answer's text. A constraint that cannot be enforced is refused.
    pub constraint: Option<ConstraintSpec>,
    /// The maximum number of tokens in the thoughts of the answer, without markers. Then the open thought is closed. `None`: no limit.
    pub think_budget: Option<usize>,
    /// The number of tokens at the end of the prompt that begin the answer. Their thoughts count.
    pub begun: usize,
    /// True if the answer continues a message whose beginning is in the prompt.
    pub is_continued: bool,
    /// True if the answer is a separate message, as in a chat. If false, it continues the prompt: its text is what its tokens add to the
    /// text of the prompt.
    pub is_message: bool,
    /// Report the progress of the prefill.
    pub prompt_progress: bool,
    /// The number of tokens at the start of the prompt that the pooling of its embedding skips.
    pub unpooled: usize,
    /// The index of the first token of type 1, for encoders with token types. `None`: all tokens have type 0.
    pub second: Option<usize>,
}

impl RequestOptions {
    /// Checks the fields that do not depend on a model, so that a client gets an error before a model is loaded.
    pub fn check(&self) -> Result<()> {
        self.check_form()?;
        self.constraint.as_ref().map_or(Ok(()), check_constraint)?;
        SamplingParams::resolve(&self.sampling, &SamplingOptions::default()).map(drop)
    }

    fn check_form(&self) -> Result<()> {
        check_stop(&self.stop)?;
        check_count("logprobs", self.logprobs)?;
        check_count("prompt_logprobs", self.prompt_logprobs)?;
        let Some(constraint) = &self.constraint else { return Ok(()) };
        check_form(constraint)?;
        let clash = |field| Err(Error::request(field, "conflicts with the constraint, which ends the text"));
        match self {
            Self { ignore_eos: true, .. } => clash("ignore_eos"),
            Self { stop, .. } if !stop.is_empty() => clash("stop"),
            _ => Ok(()),
        }
    }
}

/// A request that an engine has checked against its model and its memory.
#[derive(Debug, Clone)]
pub(super) struct CheckedRequest {
    pub(super) prompt: Vec<u32>,
    pub(super) media: Media,
    /// The audio to turn into text.
    pub(super) speech: Option<SpeechWindow>,
    pub(super) params: SamplingParams,
    pub(super) limits: Limits,
    /// True if the request set no token limit.
    pub(super) open_ended: bool,
    pub(super) logprobs: Option<usize>,
    pub(super) prompt_logprobs: Option<usize>,
    /// The pooling of its embedding, and the first token that is pooled.
    pub(super) embed: Option<(Poolings, usize)>,
    /// The index of its first token of type 1.
    pub(super) second: Option<usize>,
    pub(super) priority: Priority,
    pub(super) client: Client,
    pub(super) log_id: String,
    /// The expected exactness of its result, before the request runs.
    pub(super) exactness: Exactness,
    pub(super) constraint: Option<Arc<Compiled>>,
    pub(super) thoughts: Option<Box<ThoughtLimit>>,
    /// Decodes the answer.
    pub(super) detokenizer: Detokenizer,
    /// The tokens of an earlier run, after which it continues.
    pub(super) resume: Resume,
}

/// The limits of a sequence, and the options that affect how its rows are computed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Limits {
    pub(super) max_tokens: usize,
    /// The number of first tokens that a context shift keeps; `None` if the text ends with the context.
    pub(super) n_keep: Option<usize>,
    /// Tokens that end the text; empty if the request ignores them.
    pub(super) end_tokens: Vec<u32>,
    pub(super) stop: Vec<String>,
    pub(super) exact: bool,
    pub(super) speculate: Speculate,
    /// The number of the adapter among the engine's adapters, from 1; 0 for none.
    pub(super) adapter: usize,
    /// The only client that may reuse the cached data of the sequence; `None` if all clients share it.
    pub(super) owner: Option<u64>,
    pub(super) prompt_progress: bool,
}

impl CheckedRequest {
    /// Checks a request against the model that will run it.
    pub(super) fn new(
        prompt: Vec<u32>,
        options: &RequestOptions,
        folder: &ModelFolder,
        spec: &ModelSpec,
        grammars: &Grammars,
    ) -> Result<Self> {
        let (max_tokens, prompt_logprobs, embed) = match options.task {
            Task::Generate => (options.max_tokens, options.prompt_logprobs, None),
            Task::Score => (Some(0), options.prompt_logprobs.or(Some(0)), None),
            Task::Embed(pooling) => (Some(0), options.prompt_logprobs, Some((pooling, options.unpooled))),
            Task::Classify => (Some(0), options.prompt_logprobs, None),
            Task::Transcribe => (None, options.prompt_logprobs, None),
        };
        if let Some(message) = misfit(options, spec) {
            return Err(Error::request("model", message));
        }
        if !spec.has_head && spec.encoder.is_none() && (embed.is_none() || prompt_logprobs.is_some()) {
            let message =
                "has no head (lm_head.weight) in its files; it can embed texts but not generate them";
            return Err(Error::request("model", message));
        }
        check_prompt(&prompt, max_tokens, options.n_keep, spec)?;
        options.check_form()?;
        let given = (&options.images[..], &options.audio[..]);
        let media = Media::of(&prompt, given, options.n_keep.is_some(), folder)?;
        check_bias(&options.sampling.logit_bias, spec)?;
        check_speech(options, spec)?;
        let end_tokens = if options.ignore_eos { Vec::new() } else { folder.end_tokens.clone() };
        let compile = |constraint: &ConstraintSpec| {
            let target = Target::new(&constraint.scope, folder, spec.vocab_size);
            grammars.compile(constraint, target.answering(&prompt, options.is_message))
        };
        let constraint = options.constraint.as_ref().map(compile).transpose()?;
        if options.think_budget.is_some() && !options.is_message {
            return Err(Error::request("think_budget", "only applies to the answer of a chat"));
        }
        let limit =
            |budget| ThoughtLimit::new(budget, (&prompt, options.begun), options.is_continued, folder);
        let thoughts = options.think_budget.map(limit).transpose()?.flatten().map(Box::new);
        // A full context ends the text. It is never an error for a request that could start.
        let room = if options.n_keep.is_some() { ENDLESS } else { spec.context_length - prompt.len() };
        let detokenizer = if options.is_message || options.task != Task::Generate {
            folder.tokenizer.detokenizer(true)
        } else {
            folder.tokenizer.detokenizer_after(&prompt, true)
        };
        let defaults = folder.sampling.or(&options.sampling_defaults.options());
        Ok(Self {
            params: SamplingParams::resolve(&options.sampling, &defaults)?,
            limits: Limits {
                max_tokens: max_tokens.map_or(room, |tokens| tokens.min(room)),
                n_keep: options.n_keep,
                end_tokens,
                stop: options.stop.clone(),
                exact: options.exact.unwrap_or(false),
                speculate: options.speculate.unwrap_or_default(),
                adapter: 0,
                owner: None,
                prompt_progress: options.prompt_progress,
            },
            open_ended: max_tokens.is_none(),
            logprobs: options.logprobs,
            prompt_logprobs,
            embed,
            second: options.second,
            priority: options.priority,
            client: options.client,
            log_id: options.log_id.clone(),
            exactness: Exactness::Sampling,
            constraint,
            thoughts,
            detokenizer,
            resume: Resume::default(),
            media,
            speech: options.speech.clone(),
            prompt,
        })
    }

    /// Returns the request that continues after the tokens of a lost run, for a model with `width` token ids.
    pub(super) fn after(mut self, resume: Resume, width: usize) -> Result<Self> {
        let (count, most) = (resume.tokens.len(), self.limits.max_tokens);
        if count > most {
            let message = format!("has {count} tokens; the request generates at most {most}");
            return Err(Error::request("resume", message));
        }
        if let Some(token) = resume.tokens.iter().find(|&&token| token as usize >= width) {
            let message = format!("holds token id {token}; the model's ids end at {}", width - 1);
            return Err(Error::request("resume", message));
        }
        if count > 0 {
            // Scores and embeddings of the prompt precede its first token.
            (self.prompt_logprobs, self.embed) = (None, None);
            self.resume = resume;
        }
        Ok(self)
    }

    /// Returns the size of the request while it waits, in tokens. Pictures and audio count by their bytes.
    pub(super) fn weight(&self) -> usize {
        let audio = self.speech.as_ref().map_or(0, |speech| speech.features.bytes());
        self.prompt.len() + self.resume.tokens.len() + (self.media.bytes() + audio) / size_of::<u32>()
    }
}

/// Returns the reason why the model cannot compute what a request asks for, if it is of another kind.
fn misfit(options: &RequestOptions, spec: &ModelSpec) -> Option<&'static str> {
    match (options.task, spec.whisper) {
        (Task::Transcribe, None) => return Some("is no speech recognizer; it cannot transcribe audio"),
        (Task::Transcribe, Some(_)) => return None,
        (_, Some(_)) => return Some("is a speech recognizer; it only transcribes and translates audio"),
        (_, None) => {}
    }
    match (options.task, spec.encoder) {
        (Task::Classify, None) => Some("has no classification head; it cannot score pairs of texts"),
        (Task::Classify, Some(encoder)) if encoder.labels.is_none() => {
            Some("has no classification head; it embeds texts and scores no pairs")
        }
        (Task::Generate | Task::Score, Some(_)) => Some("is an encoder; it generates and scores no text"),
        (_, Some(_)) if options.prompt_logprobs.is_some() => {
            Some("is an encoder; it generates and scores no text")
        }
        _ => None,
    }
}

/// Refuses a window with the wrong amount of features.
fn check_speech(options: &RequestOptions, spec: &ModelSpec) -> Result<()> {
    let (Some(whisper), Some(speech)) = (spec.whisper, &options.speech) else {
        let is_missing = options.task == Task::Transcribe;
        return if is_missing { Err(Error::request("audio", "is missing")) } else { Ok(()) };
    };
    let (found, needed) = (speech.features.values().len(), mlx_audio::WINDOW_FRAMES * whisper.mel_bins);
    if found != needed {
        return Err(Error::request("audio", format!("has {found} features; the model needs {needed}")));
    }
    match speech.temperatures.iter().find(|it| !(0.0..=1e3).contains(*it)) {
        Some(wrong) => Err(Error::request("temperature", format!("is {wrong}; it must be at least 0"))),
        None => Ok(()),
    }
}

fn check_count(field: &'static str, count: Option<usize>) -> Result<()> {
    match count {
        Some(count) if count > MAX_TOP_LOGPROBS => {
            Err(Error::request(field, format!("is {count}; it must be from 0 to {MAX_TOP_LOGPROBS}")))
        }
        _ => Ok(()),
    }
}

fn check_prompt(
    prompt: &[u32],
    max_tokens: Option<usize>,
    n_keep: Option<usize>,
    spec: &ModelSpec,
) -> Result<()> {
    if prompt.is_empty() {
        return Err(Error::request("prompt", "is empty; it needs at least one token"));
    }
    // A prompt that is only scored needs no space for an answer.
    let answer = usize::from(max_tokens != Some(0));
    if let Some(kept) = n_keep {
        check_n_keep(kept, spec)?;
    }
    if n_keep.is_none() && prompt.len() + answer > spec.context_length {
        let (tokens, limit) = (prompt.len(), spec.context_length);
        let message = format!("has {tokens} tokens; the model's context holds {limit}");
        return Err(Error::context_length("prompt", tokens, limit - answer, message));
    }
    match prompt.iter().find(|&&token| token as usize >= spec.vocab_size) {
        None => Ok(()),
        Some(token) => Err(Error::request(
            "prompt",
            format!("holds token id {token}; the model's ids end at {}", spec.vocab_size - 1),
        )),
    }
}

fn check_n_keep(kept: usize, spec: &ModelSpec) -> Result<()> {
    if !spec.supports_context_shift {
        let message = "slide cannot be done with this model, which has sliding windows or positions of its own; evict-turns can";
        return Err(Error::request("context_policy", message));
    }
    let most = spec.context_length / 2;
    if kept > most {
        let message = format!(
            "slide would keep the first {kept} tokens, the length of the system prompt; it can keep at most half of the context, {most}"
        );
        return Err(Error::request("context_policy", message));
    }
    Ok(())
}

fn check_stop(stop: &[String]) -> Result<()> {
    if stop.len() > MAX_STOP_STRINGS {
        let message = format!("has {} strings; at most {MAX_STOP_STRINGS} are allowed", stop.len());
        return Err(Error::request("stop", message));
    }
    if stop.iter().any(String::is_empty) {
        return Err(Error::request("stop", "holds an empty string; it would end every text at once"));
    }
    Ok(())
}

/// Refuses a bias on a token id that does not exist, which would have no effect.
fn check_bias(bias: &[(u32, f32)], spec: &ModelSpec) -> Result<()> {
    match bias.iter().find(|(id, _)| *id as usize >= spec.vocab_size) {
        None => Ok(()),
        Some((id, _)) => Err(Error::request(
            "logit_bias",
            format!("names token {id}; the model's ids end at {}", spec.vocab_size - 1),
        )),
    }
}
