//! The front's record of a sequence: all that a new child needs to continue it.

use std::time::Instant;

use mlx_core::engine::{Event, FinishReason, Finished, RemoteSequence, Resume, Timings, Usage};

/// A sequence with this many deaths, and no token in between, fails. Their times do not matter: loading a large model takes minutes.
pub(crate) const MAX_DEATHS: usize = 3;

/// A sequence fails also if this many children in a row died before each had made `SHORT_LIFE` of its tokens.
const MAX_SHORT_LIVES: usize = 5;

/// See [`MAX_SHORT_LIVES`].
const SHORT_LIFE: usize = 16;

/// A sequence that has not ended.
pub(crate) struct Sequence {
    /// The number of the request that it belongs to.
    pub(crate) group: u64,
    pub(crate) remote: RemoteSequence,
    /// The tokens that were delivered, and the usage before the last of them.
    pub(crate) resume: Resume,
    /// True if this child has the sequence.
    pub(crate) is_submitted: bool,
    /// True if it runs or has run in this child. A waiting sequence is at no fault.
    pub(crate) is_started: bool,
    pub(crate) is_cancel_sent: bool,
    /// The number of children that died before its end.
    lives: usize,
    /// The number of deaths since its last token.
    deaths: usize,
    /// The tokens that this child has made.
    fresh: usize,
    /// The number of children in a row that died early in their tokens.
    short_lives: usize,
    delivered: Delivered,
    clock: Clock,
}

/// The events of the prompt that were delivered.
#[derive(Default)]
struct Delivered {
    /// Scored tokens.
    scores: usize,
    /// Scored tokens that this child sends again.
    repeated_scores: usize,
    /// True if the embedding or the scores of a pair were delivered.
    vector: bool,
    /// The number of tokens in the last progress report.
    read: usize,
}

struct Clock {
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Sequence {
    pub(crate) fn new(group: u64, remote: RemoteSequence) -> Self {
        let clock = Clock { submitted: Instant::now(), started: None, first_token: None, last_token: None };
        Self {
            group,
            remote,
            resume: Resume::default(),
            is_submitted: false,
            is_started: false,
            is_cancel_sent: false,
            lives: 0,
            deaths: 0,
            fresh: 0,
            short_lives: 0,
            delivered: Delivered::default(),
            clock,
        }
    }

    /// Notes that the sequence has started.
    pub(crate) fn start(&mut self) {
        self.is_started = true;
        self.clock.started.get_or_insert_with(Instant::now);
    }

    /// Delivers an event unless an earlier child sent it. Returns true if it was the last one.
    pub(crate) fn deliver(&mut self, mut event: Event) -> bool {
        match &mut event {
            Event::PromptProgress { read, .. } if *read <= self.delivered.read => return false,
            Event::PromptProgress { read, .. } => self.delivered.read = *read,
            Event::Prompt(_) if self.delivered.repeated_scores > 0 => {
                self.delivered.repeated_scores -= 1;
                return false;
            }
            Event::Prompt(_) => self.delivered.scores += 1,
            Event::Embedding(_) | Event::Scores(_) | Event::Window(_) if self.delivered.vector => {
                return false;
            }
            Event::Embedding(_) | Event::Scores(_) | Event::Window(_) => self.delivered.vector = true,
            Event::Token(token) => {
                self.resume.tokens.push(token.id);
                self.deaths = 0;
                self.fresh += 1;
                let now = Instant::now();
                self.clock.first_token.get_or_insert(now);
                self.clock.last_token = Some(now);
            }
            Event::Done(finished) if self.lives > 0 => finished.timings = self.timings(),
            Event::Done(_) => {}
        }
        let is_last = matches!(event, Event::Done(_));
        // The client may have disconnected; the next report of a step notices.
        self.remote.events.try_send(event).ok();
        is_last
    }

    /// Returns true if the client cancelled the request or disconnected.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.remote.canceller.is_cancelled() || self.remote.events.is_closed()
    }

    /// Returns true if one more death fails the sequence. It then runs without others until it has made enough tokens, so that the death
    /// can only be its own fault.
    pub(crate) fn is_suspect(&self) -> bool {
        let is_short = self.fresh < SHORT_LIFE && self.short_lives + 1 >= MAX_SHORT_LIVES;
        is_short || self.deaths + 1 >= MAX_DEATHS
    }

    /// Notes the death of the child.
    ///
    /// # Errors
    /// If the sequence must not continue. The error counts its deaths.
    pub(crate) fn survive(&mut self) -> Result<(), String> {
        self.lives += 1;
        self.delivered.repeated_scores = self.delivered.scores;
        self.is_cancel_sent = false;
        self.is_submitted = false;
        let fresh = std::mem::take(&mut self.fresh);
        if std::mem::take(&mut self.is_started) {
            self.deaths += 1;
            self.short_lives = if fresh < SHORT_LIFE { self.short_lives + 1 } else { 0 };
        }
        if self.deaths >= MAX_DEATHS {
            return Err(format!("{MAX_DEATHS} times without a token in between"));
        }
        if self.short_lives >= MAX_SHORT_LIVES {
            return Err(format!("{MAX_SHORT_LIVES} times, each time within {SHORT_LIFE} tokens,"));
        }
        Ok(())
    }

    /// Ends the sequence here, in the front.
    pub(crate) fn end(&self, reason: FinishReason) {
        let request = &self.remote.request;
        let usage = Usage {
            prompt_tokens: request.prompt.len(),
            completion_tokens: self.resume.tokens.len(),
            ..self.resume.usage
        };
        let (timings, exactness) = (self.timings(), request.exactness);
        let done = Finished { reason, delta: String::new(), usage, timings, exactness };
        self.remote.events.try_send(Event::Done(done)).ok();
    }

    /// Returns the timings over all children. Those of a child begin with it.
    fn timings(&self) -> Timings {
        let Clock { submitted, started, first_token, last_token } = &self.clock;
        let between = |from: Option<Instant>, to: Option<Instant>| {
            from.zip(to).map_or(0.0, |(from, to)| to.duration_since(from).as_secs_f64())
        };
        Timings {
            queue: between(Some(*submitted), *started),
            prefill: between(*started, *first_token),
            decode: between(*first_token, *last_token),
        }
    }
}
