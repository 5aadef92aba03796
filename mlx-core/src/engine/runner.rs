//! The engine's loop. Invariant: the only place that runs a model; every front end goes through it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use async_channel::Sender;
use mlx_rs::Array;

use super::finish::{accept, finish};
use super::handle::Canceller;
use super::request::{Event, FinishReason, GenerationRequest};
use super::scheduler::{Work, plan};
use super::sequence::Sequence;
use crate::array::slice_axis;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::model::{Batch, Model};
use crate::sampling::{Draw, Sampler, Scratch};

/// A checked request and where its events go.
pub(super) struct Submission {
    pub(super) request: GenerationRequest,
    pub(super) sink: Sender<Event>,
    pub(super) canceller: Canceller,
}

/// Owns the model and all sequences; lives on one thread.
pub(super) struct Engine {
    model: Box<dyn Model>,
    folder: Arc<ModelFolder>,
    /// In the order they came.
    sequences: Vec<Sequence>,
    scratch: Scratch,
}

impl Engine {
    pub(super) fn new(model: Box<dyn Model>, folder: Arc<ModelFolder>) -> Self {
        Self { model, folder, sequences: Vec::new(), scratch: Scratch::default() }
    }

    /// Works until every handle is gone.
    pub(super) fn run(mut self, submissions: &Receiver<Submission>) {
        loop {
            let next = if self.sequences.is_empty() {
                submissions.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                submissions.try_recv()
            };
            match next {
                Ok(submission) => self.admit(submission),
                Err(TryRecvError::Empty) => self.step(),
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    fn admit(&mut self, submission: Submission) {
        let sequence = Sequence::new(submission, self.model.new_cache(), &self.folder);
        if sequence.limits.max_tokens == 0 && sequence.prompt_score.is_none() {
            return finish(sequence, FinishReason::Length);
        }
        self.sequences.push(sequence);
    }

    /// One pass for the sequence at the front: plan, forward, draw, accept.
    fn step(&mut self) {
        // Those that wait in line are let go at once too.
        for sequence in self.sequences.extract_if(.., |sequence| sequence.is_cancelled()) {
            finish(sequence, FinishReason::Cancelled);
        }
        if self.sequences.is_empty() {
            return;
        }
        let mut sequence = self.sequences.remove(0);
        sequence.mark_started();
        match self.advance(&mut sequence) {
            Ok(None) => self.sequences.insert(0, sequence),
            Ok(Some(reason)) => finish(sequence, reason),
            Err(error) => {
                tracing::debug!(%error, "a sequence failed");
                finish(sequence, FinishReason::Error(error.to_string()));
            }
        }
    }

    fn advance(&mut self, sequence: &mut Sequence) -> Result<Option<FinishReason>> {
        let work = plan(sequence.history.len(), sequence.offset());
        let (Work::Fill(range) | Work::Draw(range)) = work.clone();
        let batch = match &sequence.history.tokens()[range.clone()] {
            [token] => Batch::step(&[(*token, range.start)]),
            tokens => Batch::run(tokens, range.start),
        };
        let hidden = self.model.forward(&batch, &mut [&mut sequence.cache])?;
        self.score_prompt(sequence, &hidden, range)?;
        match work {
            Work::Fill(_) => sequence.cache.eval().map(|()| None),
            Work::Draw(_) if sequence.limits.max_tokens == 0 => {
                sequence.mark_token();
                Ok(Some(FinishReason::Length))
            }
            Work::Draw(_) => {
                let draw = self.draw(sequence, &hidden)?;
                Ok(accept(sequence, draw))
            }
        }
    }

    fn score_prompt(&mut self, sequence: &mut Sequence, hidden: &Array, range: Range<usize>) -> Result<()> {
        let Some(prompt_score) = &mut sequence.prompt_score else { return Ok(()) };
        let prompt = &sequence.history.tokens()[..sequence.history.prompt_length()];
        if range.start >= prompt.len() {
            return Ok(());
        }
        prompt_score.extend(self.model.as_ref(), hidden, range, prompt, &mut self.scratch)
    }

    /// Draws from the last row of a pass.
    fn draw(&mut self, sequence: &mut Sequence, hidden: &Array) -> Result<Draw> {
        let rows = hidden.dim(0);
        let logits = self.model.logits(&slice_axis(hidden, 0, rows - 1, rows)?)?;
        let mut rows = [(&mut sequence.sampler, &sequence.history)];
        let mut draws = Sampler::draw(&logits, &mut rows, &mut self.scratch)?;
        draws.pop().ok_or_else(|| Error::Mlx("the pass gave no row".into()))?
    }
}
