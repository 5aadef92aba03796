//! The sequences of the engine: their tokens, the followers of the tokens and, while they run, their states.

mod embedding;
mod guess_rate;
mod media;
mod prepare;
mod prompt_score;
mod sequences;
mod text;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chat_format::text::StopMatcher;

use super::capacity::Reservation;
use super::checkpoint_plan::CheckpointPlan;
use super::constraint::{follower, thought_limit};
use super::drafters::draft_state::DraftState;
use super::drafters::hidden_rows::HiddenRows;
use super::drafters::{DraftCounts, ModelDrafter, SequenceDrafts};
use super::event::{Event, FinishReason};
use super::media::Media;
use super::miss::Miss;
use super::outlet::Outlet;
use super::request::{CheckedRequest, Limits};
use super::schedule::Need;
use super::schedule::plan::{Chunk, Next, Phase, SequenceView, StateView};
use super::schedule::speculation::DraftView;
use super::usage::{Timings, Usage};
use crate::cache::{SequenceState, Tier};
use crate::error::Result;
use crate::folder::ModelFolder;
use crate::model::{Hidden, Model, Pass};
use crate::sampling::{Sampler, Scratch, TokenHistory};

use self::embedding::Embedding;
pub(super) use self::guess_rate::GuessRate;
use self::prompt_score::PromptScore;
pub(super) use self::sequences::Sequences;
pub(super) use self::text::{OutputText, Piece};

/// A request that the engine works on.
pub(super) struct Sequence {
    pub(super) history: TokenHistory,
    pub(super) media: Media,
    /// The keys by which prompts are compared: the tokens of the prompt, with a picture's number at the positions of its rows. `None` if
    /// the prompt must not be compared.
    keys: Option<Vec<u32>>,
    pub(super) sampler: Sampler,
    pub(super) text: OutputText,
    pub(super) limits: Limits,
    pub(super) reader: PromptReader,
    pub(super) outlet: Outlet,
    pub(super) reservation: Reservation,
    pub(super) checkpoints: CheckpointPlan,
    /// `None` while the sequence waits in the queue.
    pub(super) run: Option<Run>,
    /// True if a pass that included the sequence failed. It then runs without others until its next token, so that a second failure shows
    /// that it is at fault.
    pub(super) quarantined: bool,
    /// The number of emitted tokens.
    pub(super) emitted: usize,
    /// The reason for its end, once its last token is drawn.
    pub(super) ended: Option<FinishReason>,
    /// The first difference between its prompt and a cached text.
    pub(super) miss: Option<Miss>,
    /// `None` if nothing is proposed for the sequence.
    pub(super) drafts: Option<Box<SequenceDrafts>>,
    /// The rate of correct guesses by the device.
    pub(super) guesses: GuessRate,
    cached_tokens: usize,
    /// The drafts of an earlier run.
    earlier_drafts: DraftCounts,
    clock: Clock,
}

/// Computes scores and embeddings from the hidden states of a prompt.
#[derive(Default)]
pub(super) struct PromptReader {
    pub(super) score: Option<PromptScore>,
    pub(super) embedding: Option<Embedding>,
}

impl PromptReader {
    /// Returns true if the request needs the hidden state of every position.
    pub(super) fn is_on(&self) -> bool {
        self.score.is_some() || self.embedding.is_some()
    }
}

/// The state of a running sequence.
pub(super) struct Run {
    pub(super) state: SequenceState,
    /// An unfinished prefill pass, with layers that have not been issued.
    pub(super) pass: Option<Pass>,
    /// Features of pictures and clips that have rows left to compute.
    pub(super) features: BTreeMap<usize, Hidden>,
    pub(super) wait: Wait,
    /// The state of the draft model.
    pub(super) draft_state: Option<DraftState>,
    /// Hidden states for a head that drafts.
    pub(super) hidden: HiddenRows,
}

/// The event that a running sequence waits for before it computes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Nothing,
    /// Another sequence computes the same prefix.
    Source(Source),
    /// The prefix is being read from disk, since this time.
    Disk(Instant),
}

/// A running sequence that computes the prefix another one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) id: u64,
    /// The number of positions to copy.
    pub(super) length: usize,
    /// The length of the common prefix, rounded down to a chunk boundary.
    pub(super) common_length: usize,
}

#[derive(Default)]
struct Clock {
    submitted: Option<Instant>,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Sequence {
    pub(super) fn new(
        request: CheckedRequest,
        outlet: Outlet,
        reservation: Reservation,
        folder: &ModelFolder,
    ) -> Self {
        let history = TokenHistory::new(request.prompt);
        let stop = StopMatcher::new(&request.limits.stop);
        // A prompt is reported unchanged, including special tokens.
        let score = |top| PromptScore::new(top, folder.tokenizer.detokenizer(false), outlet.sink.clone());
        let mut sampler = Sampler::new(request.params, request.logprobs, &folder.token_table);
        let grammar = request.constraint.map(|it| follower(it, &history));
        let constraint = match request.thoughts {
            Some(limit) => Some(thought_limit(*limit, grammar, &history)),
            None => grammar,
        };
        if let Some(constraint) = constraint {
            sampler = sampler.with_constraint(constraint);
        }
        Self {
            text: OutputText::new(request.detokenizer, stop, &history),
            history,
            keys: None,
            media: request.media,
            sampler,
            limits: request.limits,
            reader: PromptReader {
                score: request.prompt_logprobs.map(score),
                embedding: request.embed.map(|(poolings, first)| Embedding::new(poolings, first)),
            },
            outlet,
            reservation,
            checkpoints: CheckpointPlan::default(),
            run: None,
            quarantined: false,
            emitted: 0,
            ended: None,
            miss: request.resume.usage.miss,
            drafts: None,
            guesses: GuessRate::default(),
            cached_tokens: request.resume.usage.cached_tokens,
            earlier_drafts: request.resume.usage.drafts,
            clock: Clock { submitted: Some(Instant::now()), ..Clock::default() },
        }
    }

    /// Returns the time since the sequence first started, if it runs.
    pub(super) fn ran_for(&self) -> Option<Duration> {
        self.run.as_ref().and(self.clock.started).map(|started| started.elapsed())
    }

    /// Returns true if the result must be bit-identical regardless of concurrent sequences.
    pub(super) fn exact(&self) -> bool {
        self.limits.exact
    }

    /// Returns the number of the adapter among the engine's adapters, from 1; 0 for none.
    pub(super) fn adapter(&self) -> usize {
        self.limits.adapter
    }

    /// Returns the tier of the owner's exact or other states.
    pub(super) fn tier(&self, exact: bool) -> Tier {
        Tier { owner: self.limits.owner, adapter: self.adapter(), exact }
    }

    /// Returns the tiers of states that the sequence can reuse.
    pub(super) fn readable_tiers(&self) -> Vec<Tier> {
        let tiers = [false, true].map(|exact| self.tier(exact));
        if self.exact() { tiers[1..].to_vec() } else { tiers.to_vec() }
    }

    /// Starts the sequence with a state and the event that it waits for.
    pub(super) fn start(&mut self, state: SequenceState, wait: Wait) {
        self.clock.started.get_or_insert_with(Instant::now);
        self.outlet.sink.start();
        self.record_cached(&state);
        let state = self.checkpoints.resumed(state);
        self.run = Some(Run {
            state,
            pass: None,
            features: BTreeMap::new(),
            wait,
            draft_state: None,
            hidden: HiddenRows::default(),
        });
    }

    /// Returns true if a head of the model drafts for the sequence, from hidden states.
    pub(super) fn is_drafted_by_head(&self) -> bool {
        self.drafts.as_ref().is_some_and(|drafts| drafts.model == Some(ModelDrafter::Mtp))
    }

    /// Returns the state of the running sequence. Panics if it does not run.
    pub(super) fn running(&mut self) -> &mut Run {
        self.run.as_mut().expect("the caller works on running sequences only")
    }

    /// Returns the scheduler's view of the sequence. `growth` is the additional memory of its next reservation.
    pub(super) fn view(&self, id: u64, growth: Need) -> SequenceView {
        let phase = match &self.run {
            None => Phase::Waiting,
            Some(_) if self.ended.is_some() => Phase::Ended,
            Some(run) if run.wait != Wait::Nothing => Phase::Blocked,
            Some(_) => Phase::Running,
        };
        let state = self.run.as_ref().map_or_else(StateView::default, |run| StateView {
            seen: run.state.seen(),
            offset: run.state.offset(),
            layers: run.pass.as_ref().map_or(0, Pass::layer),
            n_keep: self.limits.n_keep,
        });
        SequenceView {
            id,
            phase,
            prompt: self.history.prompt_length(),
            length: self.history.len(),
            state,
            forced_boundaries: self.checkpoints.cuts(state.seen),
            undivided: self.media.undivided().clone(),
            growth,
            exact: self.limits.exact,
            adapter: self.limits.adapter,
            reads_hidden: self.reader.is_on(),
            awaits_first_token: self.awaits_first_token(),
            quarantined: self.quarantined,
            draft: self.drafts.as_ref().map_or_else(DraftView::default, |drafts| drafts.view()),
        }
    }

    /// Returns the next work of the sequence.
    pub(super) fn next(&self) -> Next {
        self.view(0, Need::default()).next()
    }

    /// Returns true if a token is to be drawn at the end of the prompt, and false if that happened before a preemption.
    pub(super) fn awaits_first_token(&self) -> bool {
        self.history.generated().is_empty()
    }

    /// Reads the hidden states of a prompt chunk, which begins at row `start` of the pass, for scores and an embedding. The embedding is
    /// emitted at the end of the prompt.
    pub(super) fn read(
        &mut self,
        model: &dyn Model,
        (pass, start): (&Pass, usize),
        chunk: &Chunk,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Self { reader, history, outlet, .. } = self;
        let hidden = &pass.rows(start..start + chunk.range.len())?;
        let prompt = &history.tokens()[..history.prompt_length()];
        if let Some(score) = &mut reader.score {
            score.extend(model, hidden, chunk.range.clone(), prompt, scratch)?;
        }
        if let Some(embedding) = &mut reader.embedding {
            embedding.extend(model, hidden, chunk.range.clone())?;
        }
        if chunk.ends_prompt
            && let Some(embedding) = reader.embedding.take()
        {
            // The client may have disconnected; the next step notices.
            outlet.sink.send(Event::Embedding(embedding.vector()?));
        }
        Ok(())
    }

    /// Reports the progress of the prompt, if the request asked for it.
    pub(super) fn report_progress(&self, read: usize) {
        if self.limits.prompt_progress && self.awaits_first_token() {
            // The client may have disconnected; the next step notices.
            let (total, cached) = (self.history.prompt_length(), self.cached_tokens);
            let seconds = self.clock.started.map_or(0.0, |started| started.elapsed().as_secs_f64());
            self.outlet.sink.send(Event::PromptProgress { read, total, cached, seconds });
        }
    }

    /// Continues with a state that another sequence computed or that was cached.
    pub(super) fn resume_with(&mut self, state: SequenceState) {
        self.record_cached(&state);
        let state = self.checkpoints.resumed(state);
        let run = self.running();
        run.wait = Wait::Nothing;
        run.state = state;
    }

    fn record_cached(&mut self, state: &SequenceState) {
        // After a preemption, the reused state is the sequence's own.
        if self.awaits_first_token() {
            self.cached_tokens = state.offset();
        }
    }

    /// Returns true while the sequence's prefix is read from disk.
    pub(super) fn waits_for_disk(&self) -> bool {
        self.run.as_ref().is_some_and(|run| matches!(run.wait, Wait::Disk(_)))
    }

    /// Returns true if the client disconnected or cancelled the request.
    pub(super) fn is_cancelled(&self) -> bool {
        self.outlet.canceller.is_cancelled() || self.outlet.sink.is_closed()
    }

    /// Records the time of a token, or of the end of a prompt that gets no token.
    pub(super) fn mark_token(&mut self) {
        let now = Instant::now();
        self.clock.first_token.get_or_insert(now);
        self.clock.last_token = Some(now);
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.history.prompt_length(),
            cached_tokens: self.cached_tokens,
            audio_tokens: self.media.audio_rows(),
            completion_tokens: self.history.generated().len(),
            repeated_tokens: 0,
            drafts: self.earlier_drafts
                + self.drafts.as_ref().map_or_else(DraftCounts::default, |it| it.counts),
            miss: self.miss,
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
