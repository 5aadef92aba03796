//! One sequence in the engine: its tokens, everything that follows them, and, while it runs, its cache.

use std::time::{Duration, Instant};

use async_channel::Sender;

use super::capacity::Reservation;
use super::embedding::Embedding;
use super::handle::Canceller;
use super::output_text::OutputText;
use super::prompt_score::PromptScore;
use super::request::{Event, GenerationRequest, Timings, Usage};
use crate::cache::SequenceState;
use crate::folder::ModelFolder;
use crate::model::Pass;
use crate::sampling::{Sampler, TokenHistory};
use crate::text::StopMatcher;

/// A request being worked on.
pub(super) struct Sequence {
    pub(super) history: TokenHistory,
    pub(super) sampler: Sampler,
    pub(super) text: OutputText,
    pub(super) limits: Limits,
    pub(super) reader: PromptReader,
    pub(super) outlet: Outlet,
    pub(super) promise: Reservation,
    /// `None` while it waits for its turn.
    pub(super) run: Option<Run>,
    /// It was in a pass that failed; its next step runs without company, to find out whose fault it was.
    pub(super) quarantined: bool,
    cached_tokens: usize,
    clock: Clock,
}

/// What reads the hidden states of a prompt.
#[derive(Default)]
pub(super) struct PromptReader {
    pub(super) score: Option<PromptScore>,
    pub(super) embedding: Option<Embedding>,
}

impl PromptReader {
    /// Whether every position's hidden state is wanted.
    pub(super) fn is_on(&self) -> bool {
        self.score.is_some() || self.embedding.is_some()
    }
}

/// What a sequence has while it runs.
pub(super) struct Run {
    pub(super) cache: SequenceState,
    /// A pass that has begun and not all of whose layers have been issued.
    pub(super) pass: Option<Pass>,
    /// Another sequence with the same beginning, which is computing it: its id, and how many positions to take over.
    pub(super) leader: Option<(u64, usize)>,
    /// Its place in the line for chunks.
    pub(super) place: u64,
}

/// What ends a sequence.
pub(super) struct Limits {
    pub(super) max_tokens: usize,
    /// Set if the text may outgrow the context: the number of first tokens that stay.
    pub(super) slide: Option<usize>,
    pub(super) end_tokens: Vec<u32>,
    pub(super) stop: Vec<String>,
}

/// Where the events go, and whether anybody is there.
pub(super) struct Outlet {
    pub(super) sink: Sender<Event>,
    pub(super) canceller: Canceller,
}

#[derive(Default)]
struct Clock {
    submitted: Option<Instant>,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// The next piece of a sequence's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Positions of the prompt up to this one have to be computed.
    Prompt(usize),
    /// Tokens that were generated once have to be computed again, up to this position.
    Replay(usize),
    /// The cache holds all but the newest token: a decode step.
    Step,
    /// The newest token's step is on the device.
    Nothing,
}

impl Sequence {
    pub(super) fn new(
        request: GenerationRequest,
        outlet: Outlet,
        promise: Reservation,
        folder: &ModelFolder,
    ) -> Self {
        let history = TokenHistory::new(request.prompt);
        let stop = StopMatcher::new(&request.stop);
        let detokenizer = |skip_special| folder.tokenizer.detokenizer(skip_special);
        let score = |top| PromptScore::new(top, detokenizer(false), outlet.sink.clone());
        Self {
            text: OutputText::new(detokenizer(true), stop, &history),
            history,
            sampler: Sampler::new(request.params, request.logprobs, &folder.token_table),
            limits: Limits {
                max_tokens: request.max_tokens,
                slide: request.slide,
                end_tokens: request.end_tokens,
                stop: request.stop,
            },
            // A prompt is shown as it is, special tokens included.
            reader: PromptReader {
                score: request.prompt_logprobs.map(score),
                embedding: request.embed.map(Embedding::new),
            },
            outlet,
            promise,
            run: None,
            quarantined: false,
            cached_tokens: 0,
            clock: Clock { submitted: Some(Instant::now()), ..Clock::default() },
        }
    }

    /// The prompt's tokens.
    pub(super) fn prompt(&self) -> &[u32] {
        &self.history.tokens()[..self.history.prompt_length()]
    }

    /// Whether it has ever run.
    pub(super) fn has_started(&self) -> bool {
        self.clock.started.is_some()
    }

    /// Gives it a cache to run with.
    pub(super) fn start(&mut self, cache: SequenceState, leader: Option<(u64, usize)>, place: u64) {
        self.clock.started.get_or_insert_with(Instant::now);
        self.note_cached(&cache);
        self.run = Some(Run { cache, pass: None, leader, place });
    }

    /// What is to be computed next. A sequence that does not run has nothing to compute.
    pub(super) fn next(&self) -> Next {
        let Some(run) = &self.run else { return Next::Nothing };
        let (seen, prompt) = (run.cache.seen(), self.history.prompt_length());
        let last = self.history.len() - 1;
        if seen < prompt {
            Next::Prompt(prompt)
        } else if seen < last {
            Next::Replay(last)
        } else if seen == last {
            Next::Step
        } else {
            Next::Nothing
        }
    }

    /// Whether the end of the prompt is to be drawn from: not when that was done before a preemption.
    pub(super) fn awaits_first_token(&self) -> bool {
        self.history.generated().is_empty()
    }

    /// Takes over the beginning of its cache from another sequence.
    pub(super) fn take_over(&mut self, cache: SequenceState) {
        self.note_cached(&cache);
        let Some(run) = &mut self.run else { return };
        run.leader = None;
        run.cache = cache;
    }

    fn note_cached(&mut self, cache: &SequenceState) {
        // What is taken over after a preemption was the sequence's own before.
        if self.awaits_first_token() {
            self.cached_tokens = cache.offset();
        }
    }

    /// Whether nobody wants the rest.
    pub(super) fn is_cancelled(&self) -> bool {
        self.outlet.canceller.is_cancelled() || self.outlet.sink.is_closed()
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
            cached_tokens: self.cached_tokens,
            completion_tokens: self.history.generated().len(),
        }
    }

    pub(super) fn timings(&self) -> Timings {
        let Clock { submitted, started, first_token, last_token } = self.clock;
        let between = |from: Option<Instant>, to: Option<Instant>| {
            from.zip(to).map_or(Duration::ZERO, |(from, to)| to.duration_since(from)).as_secs_f64()
        };
        Timings {
            queue: between(submitted, started),
            prefill: between(started, first_token),
            decode: between(first_token, last_token),
        }
    }
}
