//! The sampler of one sequence, and its draws.

use std::sync::Arc;

use super::chain::Chain;
use super::constraint::{Constraint, TokenMask};
use super::dry::{Breakers, TokenText};
use super::history::TokenHistory;
use super::logprobs::{TokenLogprob, check_row, score_read};
use super::math::{largest, place};
use super::noise::{Stream, uniform};
use super::parallel_draw::draw_all;
use super::parameters::SamplingParams;
use super::pending_draw::{Edits, PendingDraw, RandomDraw};
use super::scan::Scan;
use super::scratch::{Choice, Scratch};
use super::state::SamplerState;
use crate::array::Rows;
use crate::error::{Error, Result};

/// The properties of tokens that a sampler uses.
#[derive(Clone)]
pub struct TokenTable {
    /// The text of each token, for the search for sequence breakers.
    pub text: TokenText,
    /// Tokens that XTC never removes: end-of-text tokens and newlines.
    pub protected: Arc<[u32]>,
}

/// Draws the tokens of one sequence.
pub struct Sampler {
    params: SamplingParams,
    /// The number of alternatives to report with each token; `None` reports no log-probabilities at all.
    logprobs: Option<usize>,
    chain: Chain,
    breakers: Breakers,
    constraint: Option<Box<dyn Constraint>>,
    /// Created by the first draw that needs it.
    state: Option<Box<SamplerState>>,
}

/// One row of a batch to draw from.
///
/// Each row has the history that it continues. To verify a draft, a sequence has several rows with successive histories. The caller
/// draws from one row at a time (one request for [`Sampler::draw`]; the rows are computed and copied once), pushes the token, and
/// continues while it equals the draft. State, constraint and noise depend only on the history, so these draws equal those of
/// single steps.
pub struct DrawRequest<'a> {
    /// The index of the row.
    pub row: usize,
    /// The sampler of the sequence.
    pub sampler: &'a mut Sampler,
    /// The tokens before the drawn token.
    pub history: &'a TokenHistory,
}

/// A drawn token.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// The token.
    pub token: u32,
    /// Log-probabilities under the raw model row, if the request asked for them.
    pub logprob: Option<TokenLogprob>,
}

impl Sampler {
    /// Creates a sampler for one sequence. `logprobs` is at most [`super::MAX_TOP_LOGPROBS`].
    pub fn new(params: SamplingParams, logprobs: Option<usize>, token_table: &TokenTable) -> Self {
        let breakers = Breakers::new(&params.dry_sequence_breakers, Arc::clone(&token_table.text));
        let chain = Chain::new(&params, Arc::clone(&token_table.protected));
        Self { params, logprobs, chain, breakers, constraint: None, state: None }
    }

    /// Adds a constraint, which may forbid tokens.
    #[must_use]
    pub fn with_constraint(mut self, constraint: Box<dyn Constraint>) -> Self {
        self.constraint = Some(constraint);
        self
    }

    /// Returns the constraint, if there is one.
    pub fn constraint_mut(&mut self) -> Option<&mut (dyn Constraint + 'static)> {
        self.constraint.as_deref_mut()
    }

    /// Draws a token for each of `requests` from `logits`, `[B, V]`. One evaluation and one copy to the host serve all of them. If a row
    /// cannot be drawn from, only its own result is an error. Several threads share many rows.
    ///
    /// # Errors
    /// Fails if the logits cannot be computed.
    ///
    /// # Panics
    /// Panics if the index of a row is out of bounds.
    pub fn draw(
        logits: &Rows,
        requests: &mut [DrawRequest<'_>],
        scratch: &mut Scratch,
    ) -> Result<Vec<Result<Draw>>> {
        let (values, width) = (logits.values()?, logits.width());
        let cost: usize = requests.iter().map(|request| request.sampler.cost() * width).sum();
        Ok(draw_all(requests, cost, scratch, |DrawRequest { row, sampler, history }, scratch| {
            sampler.draw_row(&values[*row * width..(*row + 1) * width], history, scratch)
        }))
    }

    /// Draws from one row of f32 logits, `[V]`, on the host.
    pub fn draw_row(&mut self, raw: &[f32], history: &TokenHistory, scratch: &mut Scratch) -> Result<Draw> {
        let token = self.token(raw, history, history.len(), true, scratch)?;
        let logprob = self.logprobs.map(|count| score_read(raw, token, count, scratch));
        Ok(Draw { token, logprob })
    }

    /// Guesses the token `ahead` positions after the next one, if the model's row is like this one. Uses the noise of that position and the
    /// penalties of `history`. For drafts; no draw depends on it.
    pub fn guess(
        &mut self,
        raw: &[f32],
        history: &TokenHistory,
        ahead: usize,
        scratch: &mut Scratch,
    ) -> Result<u32> {
        self.token(raw, history, history.len() + ahead, false, scratch)
    }

    /// Chooses the token of a row for a position, under the penalties of `history` and, if `constrained`, the constraint. Leaves the scan
    /// of the row in `scratch.raw`.
    fn token(
        &mut self,
        raw: &[f32],
        history: &TokenHistory,
        position: usize,
        constrained: bool,
        scratch: &mut Scratch,
    ) -> Result<u32> {
        let Scratch { raw: scan, edited, row, mask, choice, .. } = scratch;
        scan.read(raw);
        check_row(scan)?;
        if !self.edit(raw, history, row, constrained.then_some(mask))? {
            return self.choose(raw, scan, position, choice);
        }
        edited.read(row);
        self.choose(row, edited, position, choice)
    }

    /// The approximate cost of a draw, in passes over the row that only compare.
    fn cost(&self) -> usize {
        let choice = if self.params.temperature == 0.0 { 1 } else { self.chain.cost() };
        let edits = if self.edits() { 3 } else { 0 };
        choice + edits + if self.logprobs.is_some() { 8 } else { 0 }
    }

    fn edits(&self) -> bool {
        self.is_penalized() || !self.params.logit_bias.is_empty() || self.constraint.is_some()
    }

    /// Returns the draw after `history`, assuming that min-p is the only filter that removes tokens. Returns `None` if a constraint may forbid
    /// tokens.
    pub(crate) fn pending_draw(&mut self, history: &TokenHistory) -> Option<PendingDraw> {
        if self.constraint.as_mut().is_some_and(|it| !it.is_free(history)) {
            return None;
        }
        let params = &self.params;
        let mut edits = Edits::default();
        for &(id, bias) in &params.logit_bias {
            edits.of(id).bias += bias;
        }
        if self.is_penalized() {
            let state = self.state.get_or_insert_default();
            state.sync(history, params, &self.breakers);
            state.add_edits(params, &mut edits);
        }
        let random = RandomDraw {
            scale: scale(params.temperature),
            uniform: uniform(params.seed, history.len() as u64, Stream::Draw) as f32,
            floor: params.min_p.ln(),
        };
        Some(PendingDraw { edits: edits.into_all(), random: (params.temperature != 0.0).then_some(random) })
    }

    fn is_penalized(&self) -> bool {
        self.params.penalties().is_on() || self.params.dry().is_on()
    }

    /// Writes the row with bias and penalties into `buffer`. Given a `mask` to compute in, also applies the constraint. Returns false if there
    /// is nothing to edit.
    fn edit(
        &mut self,
        raw: &[f32],
        history: &TokenHistory,
        buffer: &mut Vec<f32>,
        mask: Option<&mut TokenMask>,
    ) -> Result<bool> {
        let penalized = self.is_penalized();
        let constraint = self.constraint.as_mut().zip(mask);
        let constraint = constraint.and_then(|(it, mask)| (!it.is_free(history)).then_some((it, mask)));
        if !penalized && self.params.logit_bias.is_empty() && constraint.is_none() {
            return Ok(false);
        }
        buffer.clear();
        buffer.extend_from_slice(raw);
        for &(id, bias) in &self.params.logit_bias {
            if let Some(logit) = buffer.get_mut(id as usize) {
                *logit += bias;
            }
        }
        if penalized {
            let state = self.state.get_or_insert_default();
            state.sync(history, &self.params, &self.breakers);
            state.apply(&self.params, buffer);
        }
        if let Some((constraint, mask)) = constraint {
            mask.allow_all(buffer.len());
            constraint.restrict(history, mask)?;
            mask.apply(buffer);
        }
        Ok(true)
    }

    /// Chooses a token for a position with the filter chain, from an edited row that `scan` has read.
    fn choose(&self, row: &[f32], scan: &Scan, position: usize, buffers: &mut Choice) -> Result<u32> {
        if scan.top() == f32::NEG_INFINITY {
            return Err(Error::Sampling(
                "no token is left: logit_bias, the penalties or the grammar forbid all tokens".into(),
            ));
        }
        let params = &self.params;
        if params.temperature == 0.0 {
            return Ok(scan.argmax(row) as u32);
        }
        let noise = |stream| uniform(params.seed, position as u64, stream);
        let scale = scale(params.temperature);
        let Choice { pool, weights, blocks } = buffers;
        if !self.chain.filter(row, scan, noise(Stream::XtcGate), pool) {
            return Ok(place(row, scan.top(), scale, noise(Stream::Draw), blocks) as u32);
        }
        let candidates = &pool.kept;
        weights.clear();
        weights.extend(candidates.iter().map(|candidate| candidate.logit));
        let place = place(weights, largest(weights), scale, noise(Stream::Draw), blocks);
        Ok(candidates[place].id)
    }
}

/// Returns the factor for logits. It stays finite for tiny temperatures, which then leave only the likeliest tokens.
fn scale(temperature: f32) -> f32 {
    temperature.recip().min(f32::MAX)
}

#[cfg(test)]
mod tests;
