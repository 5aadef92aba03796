//! The sequences of the engine: their tokens, what follows the tokens and, while they run, their states.

mod embedding;
mod guess_rate;
mod pictures;
mod prepare;
mod prompt_score;
mod sequences;
mod text;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_channel::Sender;
use chat_format::text::StopMatcher;

use super::canceller::Canceller;
use super::capacity::Reservation;
use super::checkpoint_plan::CheckpointPlan;
use super::constraint::follower;
use super::drafters::draft_state::DraftState;
use super::drafters::hidden_rows::HiddenRows;
use super::drafters::{DraftCounts, ModelDrafter, SequenceDrafts};
use super::event::{Event, FinishReason};
use super::miss::Miss;
use super::pictures::Pictures;
use super::request::{GenerationRequest, Limits};
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
    pub(super) pictures: Pictures,
    /// What stands for the prompt where prompts are compared: its tokens, and at the places of a picture that picture's number. `None` if it
    /// must not be compared.
    keys: Option<Vec<u32>>,
    pub(super) sampler: Sampler,
    pub(super) text: OutputText,
    pub(super) limits: Limits,
    pub(super) reader: PromptReader,
    pub(super) outlet: Outlet,
    pub(super) reservation: Reservation,
    pub(super) checkpoints: CheckpointPlan,
    /// `None` while it waits in the queue.
    pub(super) run: Option<Run>,
    /// A pass that it was part of failed: it runs alone until its next token, which shows whose fault it was.
    pub(super) quarantined: bool,
    /// The number of emitted tokens.
    pub(super) emitted: usize,
    /// Why it ends, once its last token is drawn.
    pub(super) ended: Option<FinishReason>,
    /// Where its prompt left a kept text.
    pub(super) miss: Option<Miss>,
    /// `None` if nothing is proposed for it.
    pub(super) drafts: Option<Box<SequenceDrafts>>,
    /// How often the device guesses its tokens.
    pub(super) guesses: GuessRate,
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
    /// Whether the request needs the hidden state of every position.
    pub(super) fn is_on(&self) -> bool {
        self.score.is_some() || self.embedding.is_some()
    }
}

/// What a sequence has while it runs.
pub(super) struct Run {
    pub(super) state: SequenceState,
    /// A prefill pass that has begun and not all of whose layers have been issued.
    pub(super) pass: Option<Pass>,
    /// The features of pictures whose rows are still to be computed.
    pub(super) features: BTreeMap<usize, Hidden>,
    pub(super) wait: Wait,
    /// The state of the model that drafts.
    pub(super) draft_state: Option<DraftState>,
    /// What a head that drafts reads.
    pub(super) hidden: HiddenRows,
}

/// What a running sequence waits for before it computes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Nothing,
    /// Another sequence that is computing the same prefix.
    Source(Source),
    /// The reader of saved prefixes, since then.
    Disk(Instant),
}

/// A running sequence whose prefix another one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) id: u64,
    /// The positions to copy.
    pub(super) length: usize,
    /// The positions that both have in common, up to a chunk boundary.
    pub(super) parting: usize,
}

/// Where the events go.
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

impl Sequence {
    pub(super) fn new(
        request: GenerationRequest,
        outlet: Outlet,
        reservation: Reservation,
        folder: &ModelFolder,
    ) -> Self {
        let history = TokenHistory::new(request.prompt);
        let stop = StopMatcher::new(&request.limits.stop);
        // A prompt is shown as it is, special tokens included.
        let score = |top| PromptScore::new(top, folder.tokenizer.detokenizer(false), outlet.sink.clone());
        let mut sampler = Sampler::new(request.params, request.logprobs, &folder.token_table);
        if let Some(constraint) = request.constraint {
            sampler = sampler.with_constraint(follower(constraint, &history));
        }
        Self {
            text: OutputText::new(request.detokenizer, stop, &history),
            history,
            keys: None,
            pictures: request.pictures,
            sampler,
            limits: request.limits,
            reader: PromptReader {
                score: request.prompt_logprobs.map(score),
                embedding: request.embed.map(|(pooling, first)| Embedding::new(pooling, first)),
            },
            outlet,
            reservation,
            checkpoints: CheckpointPlan::default(),
            run: None,
            quarantined: false,
            emitted: 0,
            ended: None,
            miss: None,
            drafts: None,
            guesses: GuessRate::default(),
            cached_tokens: 0,
            clock: Clock { submitted: Some(Instant::now()), ..Clock::default() },
        }
    }

    /// The time since it first started, if it runs.
    pub(super) fn ran_for(&self) -> Option<Duration> {
        self.run.as_ref().and(self.clock.started).map(|started| started.elapsed())
    }

    /// Whether its result must be the same bits whatever runs beside it.
    pub(super) fn exact(&self) -> bool {
        self.limits.exact
    }

    /// The adapter that it goes through, by its place among those of the engine from 1; 0 for none.
    pub(super) fn adapter(&self) -> usize {
        self.limits.adapter
    }

    /// The tier of its owner's exact states, or of its owner's other states.
    pub(super) fn tier(&self, exact: bool) -> Tier {
        Tier { owner: self.limits.owner, adapter: self.adapter(), exact }
    }

    /// The tiers of states that it may take over.
    pub(super) fn readable_tiers(&self) -> Vec<Tier> {
        let tiers = [false, true].map(|exact| self.tier(exact));
        if self.exact() { tiers[1..].to_vec() } else { tiers.to_vec() }
    }

    /// Starts it with a state, or with what it waits for before it computes.
    pub(super) fn start(&mut self, state: SequenceState, wait: Wait) {
        self.clock.started.get_or_insert_with(Instant::now);
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

    /// Whether a head of the model drafts for it, from hidden states.
    pub(super) fn is_drafted_by_head(&self) -> bool {
        self.drafts.as_ref().is_some_and(|drafts| drafts.model == Some(ModelDrafter::Mtp))
    }

    /// What a sequence has while it runs. It must be running.
    pub(super) fn running(&mut self) -> &mut Run {
        self.run.as_mut().expect("the caller works on running sequences only")
    }

    /// As the scheduler sees it; `growth` is what its next reservation takes in addition.
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
            cuts: self.checkpoints.cuts(state.seen),
            undivided: self.pictures.undivided().clone(),
            growth,
            exact: self.limits.exact,
            adapter: self.limits.adapter,
            reads_hidden: self.reader.is_on(),
            awaits_first_token: self.awaits_first_token(),
            quarantined: self.quarantined,
            draft: self.drafts.as_ref().map_or_else(DraftView::default, |drafts| drafts.view()),
        }
    }

    /// What is to be computed next.
    pub(super) fn next(&self) -> Next {
        self.view(0, Need::default()).next()
    }

    /// Whether the end of the prompt is to be drawn from: not when that was done before a preemption.
    pub(super) fn awaits_first_token(&self) -> bool {
        self.history.generated().is_empty()
    }

    /// Reads the hidden states of a chunk of its prompt, for scores or an embedding, which is emitted at the prompt's end.
    pub(super) fn read(
        &mut self,
        model: &dyn Model,
        pass: &Pass,
        chunk: &Chunk,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Self { reader, history, outlet, .. } = self;
        let prompt = &history.tokens()[..history.prompt_length()];
        if let Some(score) = &mut reader.score {
            score.extend(model, pass.hidden(), chunk.range.clone(), prompt, scratch)?;
        }
        if let Some(embedding) = &mut reader.embedding {
            embedding.extend(model, pass.hidden(), chunk.range.clone())?;
        }
        if chunk.ends_prompt
            && let Some(embedding) = reader.embedding.take()
        {
            // The client may be gone; the next step notices.
            outlet.sink.try_send(Event::Embedding(embedding.vector()?)).ok();
        }
        Ok(())
    }

    /// Reports how far the prompt was read, if the request asked for that.
    pub(super) fn report_progress(&self, read: usize) {
        if self.limits.prompt_progress && self.awaits_first_token() {
            // The client may be gone; the next step notices.
            let total = self.history.prompt_length();
            self.outlet.sink.try_send(Event::PromptProgress { read, total }).ok();
        }
    }

    /// Goes on with a state that another sequence computed, or that was kept.
    pub(super) fn resume_with(&mut self, state: SequenceState) {
        self.record_cached(&state);
        let state = self.checkpoints.resumed(state);
        let run = self.running();
        run.wait = Wait::Nothing;
        run.state = state;
    }

    fn record_cached(&mut self, state: &SequenceState) {
        // What is reused after a preemption was the sequence's own before.
        if self.awaits_first_token() {
            self.cached_tokens = state.offset();
        }
    }

    /// Whether its prefix is being read from disk.
    pub(super) fn waits_for_disk(&self) -> bool {
        self.run.as_ref().is_some_and(|run| matches!(run.wait, Wait::Disk(_)))
    }

    /// Whether the client is gone or has cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.outlet.canceller.is_cancelled() || self.outlet.sink.is_closed()
    }

    /// Records the time of a token, or of the end of a prompt without one.
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
            repeated_tokens: 0,
            drafts: self.drafts.as_ref().map_or_else(DraftCounts::default, |drafts| drafts.counts),
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
