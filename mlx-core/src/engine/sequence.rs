//! One sequence in the engine: its tokens, its cache and everything that follows them.

use std::time::Instant;

use async_channel::Sender;

use super::follower::TextFollower;
use super::handle::Canceller;
use super::prompt_score::PromptScore;
use super::request::{Event, Timings, Usage};
use super::runner::Submission;
use crate::cache::SequenceCache;
use crate::folder::ModelFolder;
use crate::sampling::{Sampler, TokenHistory};
use crate::text::StopMatcher;

/// A request being worked on.
pub(super) struct Sequence {
    pub(super) history: TokenHistory,
    pub(super) cache: SequenceCache,
    pub(super) sampler: Sampler,
    pub(super) text: TextFollower,
    pub(super) limits: Limits,
    pub(super) prompt_score: Option<PromptScore>,
    pub(super) sink: Sender<Event>,
    canceller: Canceller,
    clock: Clock,
}

/// What ends a sequence.
pub(super) struct Limits {
    pub(super) max_tokens: usize,
    pub(super) end_tokens: Vec<u32>,
    pub(super) stop: Vec<String>,
}

#[derive(Default)]
struct Clock {
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Sequence {
    pub(super) fn new(submission: Submission, cache: SequenceCache, folder: &ModelFolder) -> Self {
        let Submission { request, sink, canceller } = submission;
        let history = TokenHistory::new(request.prompt);
        let stop = StopMatcher::new(&request.stop);
        let detokenizer = |skip_special| folder.tokenizer.detokenizer(skip_special);
        Self {
            text: TextFollower::new(detokenizer(true), stop, &history),
            history,
            cache,
            sampler: Sampler::new(request.params, request.logprobs, &folder.lexicon),
            limits: Limits {
                max_tokens: request.max_tokens,
                end_tokens: request.end_tokens,
                stop: request.stop,
            },
            // A prompt is shown as it is, special tokens included.
            prompt_score: request
                .prompt_logprobs
                .map(|top| PromptScore::new(top, detokenizer(false), sink.clone())),
            sink,
            canceller,
            clock: Clock::default(),
        }
    }

    /// The first position whose token the cache has not seen.
    pub(super) fn offset(&self) -> usize {
        self.cache.offset()
    }

    /// Whether nobody wants the rest.
    pub(super) fn is_cancelled(&self) -> bool {
        self.canceller.is_cancelled() || self.sink.is_closed()
    }

    /// Starts the clock at the first work done for this sequence.
    pub(super) fn mark_started(&mut self) {
        self.clock.started.get_or_insert_with(Instant::now);
    }

    /// Notes that a token was drawn, or that there is none to draw after the prompt.
    pub(super) fn mark_token(&mut self) {
        let now = Instant::now();
        self.clock.first_token.get_or_insert(now);
        self.clock.last_token = Some(now);
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.history.prompt_length(),
            cached_tokens: 0,
            completion_tokens: self.history.generated().len(),
        }
    }

    pub(super) fn timings(&self) -> Timings {
        let between = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.duration_since(from).as_secs_f64(),
            _ => 0.0,
        };
        let Clock { started, first_token, last_token } = self.clock;
        Timings { prefill: between(started, first_token), decode: between(first_token, last_token) }
    }
}
