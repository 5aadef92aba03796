//! A model that drafts for the engine's model: a small separate model, or a head that reads the hidden states of the engine's model. Its
//! states follow the histories: rejected tokens are removed from a state before the next draft.

use std::time::{Duration, Instant};

use crate::array::Rows;
use crate::cache::{Rollback, SequenceState};
use crate::engine::drafters::ModelDrafter;
use crate::engine::drafters::draft_state::DraftState;
use crate::engine::drafters::hidden_rows::HiddenRows;
use crate::engine::options::EngineOptions;
use crate::engine::run::device::Device;
use crate::engine::run::prefill_chunk::PrefillChunk;
use crate::engine::schedule::undivided::Undivided;
use crate::engine::sequence::{Run, Sequence};
use crate::error::Result;
use crate::model::{Hidden, LogitRows, MTP_HISTORY, Model};
use crate::sampling::{Sampler, Scratch, TokenHistory};

/// The maximum time that a step spends to update a state that lags, since other sequences wait meanwhile.
const READ_FOR: Duration = Duration::from_millis(30);

/// A model that drafts, with the device that runs its passes.
pub(in crate::engine) struct DraftModel {
    device: Device,
    kind: ModelDrafter,
    /// The vocabulary size of the engine's model.
    vocabulary: usize,
}

/// A sequence that receives a draft.
struct Drafting<'a> {
    history: &'a TokenHistory,
    sampler: &'a mut Sampler,
    state: &'a mut DraftState,
    hidden: &'a HiddenRows,
    draft: &'a mut Vec<u32>,
}

impl DraftModel {
    /// Creates a draft model for a model with `vocabulary` tokens.
    pub(in crate::engine) fn new(
        model: Box<dyn Model>,
        kind: ModelDrafter,
        options: &EngineOptions,
        vocabulary: usize,
    ) -> Result<Self> {
        let running = options.max_running.max(1);
        Ok(Self { device: Device::for_drafts(model, running, options.backend()?), kind, vocabulary })
    }

    pub(in crate::engine) fn kind(&self) -> ModelDrafter {
        self.kind
    }

    /// Returns the maximum number of tokens that it can draft after a text of `length` tokens.
    pub(in crate::engine) fn headroom(&self, length: usize) -> usize {
        self.device.context().saturating_sub(length)
    }

    /// Drafts up to `count` tokens for each of these running sequences, in passes over all of them. Returns the number of passes. A
    /// sequence that lags by more than one chunk gets no draft; one such sequence catches up for at most 30 ms. A sequence with tokens
    /// outside this model's vocabulary gets no draft either, since vocabularies of a family may differ in length.
    pub(in crate::engine) fn draft(
        &self,
        sequences: Vec<&mut Sequence>,
        count: usize,
        scratch: &mut Scratch,
    ) -> Result<usize> {
        let mut ready: Vec<Drafting> = Vec::new();
        let (mut rows, mut is_behind) = (self.device.chunks.shared_rows(), None);
        for sequence in sequences {
            let Sequence { run: Some(run), history, sampler, drafts: Some(drafts), .. } = sequence else {
                continue;
            };
            let Run { draft_state, hidden, .. } = run;
            let state = draft_state.get_or_insert_with(|| self.new_state(history, 0));
            let follows = match self.kind {
                ModelDrafter::Draft => self.cut(state, history),
                ModelDrafter::Mtp => self.follow(state, hidden, history)?,
            };
            let knows = |token: &u32| (*token as usize) < self.device.vocabulary();
            if !follows || !history.tokens()[state.next()..].iter().all(knows) {
                continue;
            }
            let pending = history.len() - state.next();
            let chunk = self.device.chunks.next(state.next(), history.len(), &Undivided::default());
            let drafting = Drafting { history, sampler, state, hidden, draft: &mut drafts.draft.tokens };
            // The pending text of a head always fits into a chunk.
            if chunk.end < history.len() && self.kind == ModelDrafter::Draft {
                is_behind = is_behind.or(Some(drafting));
            } else if pending <= rows {
                rows -= pending;
                ready.push(drafting);
            }
        }
        if let Some(Drafting { history, state, .. }) = is_behind {
            self.catch_up(&mut state.state, history.tokens())?;
        }
        self.draft_ready(&mut ready, count, scratch)
    }

    fn new_state(&self, history: &TokenHistory, base: usize) -> DraftState {
        DraftState { state: self.device.new_state(history.len()), base, read: 0 }
    }

    /// Truncates a state to its common prefix with the history.
    fn cut(&self, state: &mut DraftState, history: &TokenHistory) -> bool {
        let length = state.state.offset().min(history.len() - 1);
        let fits = self.device.fits(&state.state, history.len());
        if !fits || state.state.rollback(length) == Rollback::StartOver {
            *state = self.new_state(history, 0);
        }
        true
    }

    /// Like `cut`, for a head that reads the stored hidden states. Returns false if the states that it needs next are missing.
    fn follow(
        &self,
        state: &mut DraftState,
        hidden: &mut HiddenRows,
        history: &TokenHistory,
    ) -> Result<bool> {
        let newest = history.len() - 1;
        hidden.truncate(newest)?;
        let known = hidden.range();
        let length = state.read.min(newest.saturating_sub(state.base));
        let keeps = self.device.fits(&state.state, history.len())
            && state.state.rollback(length) != Rollback::StartOver
            && state.next() > known.start;
        if !keeps {
            let base = (known.start + 1).max(history.len().saturating_sub(MTP_HISTORY));
            *state = self.new_state(history, base);
        }
        Ok(known.end == newest && state.next() <= newest)
    }

    /// Computes chunks of a text until the time is up, excluding the last chunk.
    fn catch_up(&self, state: &mut SequenceState, tokens: &[u32]) -> Result<()> {
        let begun = Instant::now();
        loop {
            let chunk = self.device.chunks.next(state.offset(), tokens.len(), &Undivided::default());
            if chunk.end == tokens.len() {
                return Ok(());
            }
            let start = chunk.start;
            let chunk = PrefillChunk::of_text(&tokens[chunk], start, LogitRows::None);
            let mut pass = self.device.begin_prefill(0, &[chunk])?;
            self.device.advance(0, &mut pass, self.device.layers(), &mut [&mut *state])?;
            state.eval()?;
            if begun.elapsed() > READ_FOR {
                return Ok(());
            }
        }
    }

    fn draft_ready(&self, ready: &mut [Drafting], count: usize, scratch: &mut Scratch) -> Result<usize> {
        if ready.is_empty() {
            return Ok(0);
        }
        let (logits, mut hidden) = self.read_pending(ready)?;
        self.guess(ready, &logits, 0, scratch)?;
        for place in 1..count {
            let newest = |it: &Drafting| (it.draft[place - 1], it.state.state.offset());
            let rows: Vec<(u32, usize)> = ready.iter().map(newest).collect();
            let mut states: Vec<&mut SequenceState> =
                ready.iter_mut().map(|it| &mut it.state.state).collect();
            let logits = match hidden {
                None => self.device.decode(0, &rows, &mut states, false)?,
                Some(before) => {
                    let chunks = rows.iter().map(|(token, start)| {
                        PrefillChunk::of_text(std::slice::from_ref(token), *start, LogitRows::All)
                    });
                    let pass = self.device.forward_mtp(&chunks.collect::<Vec<_>>(), before, &mut states)?;
                    hidden = Some(self.device.hidden(0, &pass)?);
                    self.device.logits(0, &pass)?
                }
            };
            self.guess(ready, &logits, place, scratch)?;
        }
        Ok(count)
    }

    /// Computes the pending tokens of all texts. Returns the logits after each text and, for a head, its hidden states there.
    fn read_pending(&self, ready: &mut [Drafting]) -> Result<(Rows, Option<Hidden>)> {
        let chunks: Vec<PrefillChunk> = ready
            .iter()
            .map(|it| {
                let tokens = &it.history.tokens()[it.state.next()..];
                PrefillChunk::of_text(tokens, it.state.state.offset(), LogitRows::Last)
            })
            .collect();
        let before = match self.kind {
            ModelDrafter::Draft => None,
            ModelDrafter::Mtp => Some(hidden_before(ready)?),
        };
        let mut states: Vec<&mut SequenceState> = ready.iter_mut().map(|it| &mut it.state.state).collect();
        let (pass, hidden) = match before {
            None => {
                let mut pass = self.device.begin_prefill(0, &chunks)?;
                self.device.advance(0, &mut pass, self.device.layers(), &mut states)?;
                (pass, None)
            }
            Some(before) => {
                let pass = self.device.forward_mtp(&chunks, before, &mut states)?;
                let hidden = self.device.logit_hidden(&pass)?;
                (pass, Some(hidden))
            }
        };
        for it in ready {
            let state = &mut it.state.state;
            // Some states cannot be truncated after several passes; they return to this checkpoint.
            state.drop_checkpoints();
            state.checkpoint(false)?;
            it.state.read = it.state.state.offset();
        }
        Ok((self.device.logits(0, &pass)?, hidden))
    }

    /// Adds the token at index `place` to each draft.
    fn guess(
        &self,
        ready: &mut [Drafting],
        logits: &Rows,
        place: usize,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let (values, width) = (logits.values()?, logits.width());
        for (row, drafting) in values.chunks_exact(width).zip(ready) {
            let Drafting { history, sampler, draft, .. } = drafting;
            let row = &row[..width.min(self.vocabulary)];
            // If a row cannot be drawn from, any token will do, since a wrong draft is harmless.
            draft.push(sampler.guess(row, history, place, scratch).unwrap_or_default());
        }
        Ok(())
    }
}

/// Returns the hidden states before the pending tokens of a head, in the order of their rows.
fn hidden_before(ready: &[Drafting]) -> Result<Hidden> {
    let rows = ready.iter().map(|it| it.hidden.of(it.state.next() - 1..it.history.len() - 1));
    Hidden::joined(&rows.collect::<Result<Vec<Hidden>>>()?)
}
