//! A small model that drafts for the engine's model. Its states follow the histories: what it drafted and was not drawn is cut from a state
//! before the next draft.

use std::time::{Duration, Instant};

use super::device::{Device, PrefillChunk};
use crate::array::Rows;
use crate::cache::{Rollback, SequenceState};
use crate::engine::options::EngineOptions;
use crate::engine::sequence::{Run, Sequence};
use crate::engine::speculate::Speculate;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::hub;
use crate::model::{self, LogitRows, Model};
use crate::sampling::{Sampler, Scratch, TokenHistory};
use crate::text::Tokenizer;

/// Texts are read for about so long in a step: the streams beside it wait for that.
const READ_FOR: Duration = Duration::from_millis(30);

/// A model that drafts, and how its passes run.
pub(in crate::engine) struct DraftModel {
    device: Device,
    /// The tokens that the engine's model knows.
    vocabulary: usize,
}

/// A sequence that a draft is made for.
struct Drafting<'a> {
    history: &'a TokenHistory,
    sampler: &'a mut Sampler,
    state: &'a mut SequenceState,
    draft: &'a mut Vec<u32>,
}

impl DraftModel {
    /// Loads the model that drafts, if the options name one, for the model in `folder`.
    ///
    /// # Errors
    /// Also if their tokens differ.
    pub(in crate::engine) fn load(
        options: &EngineOptions,
        folder: &ModelFolder,
    ) -> Result<Option<Box<dyn Model>>> {
        let Some(given) = &options.draft_model else {
            return match options.speculate {
                Speculate::Draft => {
                    Err(Error::option("speculate", "is draft, and draft_model names no model"))
                }
                _ => Ok(None),
            };
        };
        let path = hub::resolve(given)?;
        if let Some((id, theirs, ours)) = difference(&Tokenizer::load(&path)?, &folder.tokenizer) {
            let message = format!(
                "{} has other tokens than {}: {id} is {theirs:?} there and {ours:?} here; name a smaller model of the same family",
                given.display(),
                folder.name()
            );
            return Err(Error::option("draft_model", message));
        }
        model::load(&path, options.weights()?, &mut |_, _| {}).map(Some)
    }

    /// For sequences of a model with so many tokens.
    pub(in crate::engine) fn new(
        model: Box<dyn Model>,
        options: &EngineOptions,
        vocabulary: usize,
    ) -> Result<Self> {
        let running = options.max_running.max(1);
        Ok(Self { device: Device::for_drafts(model, running, options.backend()?), vocabulary })
    }

    /// How many tokens behind a text of `length` tokens it can draft at most.
    pub(in crate::engine) fn room(&self, length: usize) -> usize {
        self.device.context().saturating_sub(length)
    }

    /// Drafts up to `count` tokens for each of these running sequences, in passes over all of them; returns the number of passes. A sequence
    /// of whose text the state lacks more than a chunk gets no draft: chunks are computed for one of them, for a while.
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
            let Run { draft_state, .. } = run;
            let state = draft_state.get_or_insert_with(|| self.device.new_state(history.len()));
            self.cut(state, history);
            let pending = history.len() - state.offset();
            let chunk = self.device.chunks.next(state.offset(), history.len());
            let drafting = Drafting { history, sampler, state, draft: &mut drafts.draft.tokens };
            if chunk.end < history.len() {
                is_behind = is_behind.or(Some(drafting));
            } else if pending <= rows {
                rows -= pending;
                ready.push(drafting);
            }
        }
        if let Some(Drafting { history, state, .. }) = is_behind {
            self.catch_up(state, history.tokens())?;
        }
        self.draft_ready(&mut ready, count, scratch)
    }

    /// Brings a state to the tokens of the history that it has seen.
    fn cut(&self, state: &mut SequenceState, history: &TokenHistory) {
        let length = state.offset().min(history.len() - 1);
        if !self.device.fits(state, history.len()) || state.rollback(length) == Rollback::StartOver {
            *state = self.device.new_state(history.len());
        }
    }

    /// Computes chunks of a text as long as there is time, but not the last one.
    fn catch_up(&self, state: &mut SequenceState, tokens: &[u32]) -> Result<()> {
        let begun = Instant::now();
        loop {
            let chunk = self.device.chunks.next(state.offset(), tokens.len());
            if chunk.end == tokens.len() {
                return Ok(());
            }
            let start = chunk.start;
            let chunk = PrefillChunk { tokens: &tokens[chunk], start, logits: LogitRows::None };
            let mut pass = self.device.begin_prefill(0, &[chunk])?;
            self.device.advance(0, &mut pass, self.device.layers(), &mut [&mut *state], false)?;
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
        let logits = self.read_pending(ready)?;
        self.guess(ready, &logits, 0, scratch)?;
        for place in 1..count {
            let newest = |it: &Drafting| (it.draft[place - 1], it.state.offset());
            let rows: Vec<(u32, usize)> = ready.iter().map(newest).collect();
            let mut states: Vec<&mut SequenceState> = ready.iter_mut().map(|it| &mut *it.state).collect();
            let logits = self.device.decode(0, &rows, &mut states, false)?;
            self.guess(ready, &logits, place, scratch)?;
        }
        Ok(count)
    }

    /// The logits behind the texts, after a pass over what the states lack of them.
    fn read_pending(&self, ready: &mut [Drafting]) -> Result<Rows> {
        let chunks: Vec<PrefillChunk> = ready
            .iter()
            .map(|it| {
                let start = it.state.offset();
                PrefillChunk { tokens: &it.history.tokens()[start..], start, logits: LogitRows::Last }
            })
            .collect();
        let mut pass = self.device.begin_prefill(0, &chunks)?;
        let mut states: Vec<&mut SequenceState> = ready.iter_mut().map(|it| &mut *it.state).collect();
        self.device.advance(0, &mut pass, self.device.layers(), &mut states, true)?;
        for state in states {
            // Some states cannot be cut after several passes; they go back to here.
            state.drop_checkpoints();
            state.checkpoint(false)?;
        }
        self.device.logits(0, &pass)
    }

    /// Adds the token at `place` to each draft.
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
            // A row that cannot be drawn from is as good as a wrong one.
            draft.push(sampler.guess(row, history, place, scratch).unwrap_or_default());
        }
        Ok(())
    }
}

/// The first token that is not the same in two vocabularies: its id, and its names. Special tokens may differ, and one vocabulary may be the
/// longer.
fn difference(one: &Tokenizer, other: &Tokenizer) -> Option<(u32, String, String)> {
    let ids = 0..one.vocab_size().min(other.vocab_size()) as u32;
    let plain = ids.filter(|&id| !one.is_special(id) && !other.is_special(id));
    let mut pairs = plain.filter_map(|id| Some((id, one.token(id)?, other.token(id)?)));
    pairs.find(|(_, one, other)| one != other)
}
