//! The sampler of one sequence, and the draw.

use std::sync::Arc;

use super::chain::Chain;
use super::constraint::{Constraint, TokenMask};
use super::dry::{Breakers, TokenText};
use super::history::TokenHistory;
use super::logprobs::{TokenLogprob, check_row, score_read};
use super::math::{largest, place};
use super::noise::{Stream, uniform};
use super::parameters::SamplingParams;
use super::pending_draw::{Edits, PendingDraw, RandomDraw};
use super::scan::Scan;
use super::scratch::{Choice, Scratch};
use super::side_by_side::draw_all;
use super::state::SamplerState;
use crate::array::Rows;
use crate::error::{Error, Result};

/// What the sampler needs to know about tokens.
#[derive(Clone)]
pub struct TokenTable {
    /// The text of each token, to find sequence breakers in.
    pub text: TokenText,
    /// Tokens that XTC never removes: ends of text and newlines.
    pub protected: Arc<[u32]>,
}

/// Draws the tokens of one sequence.
pub struct Sampler {
    params: SamplingParams,
    /// How many alternatives to report with each token; `None` reports no log-probabilities at all.
    logprobs: Option<usize>,
    chain: Chain,
    breakers: Breakers,
    constraint: Option<Box<dyn Constraint>>,
    /// Absent until a draw needs it.
    state: Option<Box<SamplerState>>,
}

/// One row of a batch to draw from.
///
/// A row is drawn from under the history that it continues. Verification of a draft has several rows of one sequence, at
/// successive histories: the caller draws from one row at a time ([`Sampler::draw`] with a single request; the rows are
/// computed and copied once), pushes the token, and continues while it equals the draft. State, constraint and noise are
/// functions of the history alone, so these draws are those of single steps.
pub struct DrawRequest<'a> {
    /// The index of the row.
    pub row: usize,
    /// The sampler of the sequence.
    pub sampler: &'a mut Sampler,
    /// The tokens before the one that is drawn.
    pub history: &'a TokenHistory,
}

/// A token that was drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// The token.
    pub token: u32,
    /// Log-probabilities under the raw model row, if the request asked for them.
    pub logprob: Option<TokenLogprob>,
}

impl Sampler {
    /// A sampler for one sequence; `logprobs` is at most [`super::MAX_TOP_LOGPROBS`].
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

    /// What forbids tokens, if anything does.
    pub fn constraint_mut(&mut self) -> Option<&mut (dyn Constraint + 'static)> {
        self.constraint.as_deref_mut()
    }

    /// Draws a token for each of `requests` from `logits` `[B, V]`. One evaluation and one host read serve all of them; each
    /// outcome is its own, and a row that cannot be drawn from fails alone. Several threads share many rows.
    ///
    /// # Errors
    /// When the logits cannot be computed.
    ///
    /// # Panics
    /// When there is no row with such an index.
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

    /// Draws from one row of f32 logits `[V]` that is on the host already.
    pub fn draw_row(&mut self, raw: &[f32], history: &TokenHistory, scratch: &mut Scratch) -> Result<Draw> {
        let token = self.token(raw, history, history.len(), true, scratch)?;
        let logprob = self.logprobs.map(|count| score_read(raw, token, count, scratch));
        Ok(Draw { token, logprob })
    }

    /// What a draw `ahead` tokens behind `history` gives if the model's row is like this one: it has the noise of that place, and the
    /// penalties of `history`. For drafts: no draw depends on it.
    pub fn guess(
        &mut self,
        raw: &[f32],
        history: &TokenHistory,
        ahead: usize,
        scratch: &mut Scratch,
    ) -> Result<u32> {
        self.token(raw, history, history.len() + ahead, false, scratch)
    }

    /// The token of a row for a position, under the penalties of `history` and, unless it is a guess, the constraint. `scratch.raw` has read
    /// the row afterwards.
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

    /// About how often a draw reads the row, in passes that only compare.
    fn cost(&self) -> usize {
        let choice = if self.params.temperature == 0.0 { 1 } else { self.chain.cost() };
        let edits = if self.edits() { 3 } else { 0 };
        choice + edits + if self.logprobs.is_some() { 8 } else { 0 }
    }

    fn edits(&self) -> bool {
        self.is_penalized() || !self.params.logit_bias.is_empty() || self.constraint.is_some()
    }

    /// How the draw behind `history` goes if no filter but min-p removes anything; `None` if a constraint decides, too.
    pub(crate) fn pending_draw(&mut self, history: &TokenHistory) -> Option<PendingDraw> {
        if self.constraint.is_some() {
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

    /// Writes the row with bias and penalties and, given a `mask` to compute in, the constraint into `buffer`; false if there is nothing to
    /// edit.
    fn edit(
        &mut self,
        raw: &[f32],
        history: &TokenHistory,
        buffer: &mut Vec<f32>,
        mask: Option<&mut TokenMask>,
    ) -> Result<bool> {
        let penalized = self.is_penalized();
        let constraint = self.constraint.as_mut().zip(mask);
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

    /// The token that the chain picks for a position from an edited row that `scan` has read.
    fn choose(&self, row: &[f32], scan: &Scan, position: usize, buffers: &mut Choice) -> Result<u32> {
        if scan.top() == f32::NEG_INFINITY {
            return Err(Error::Sampling(
                "no token is left: logit_bias, penalties or the grammar forbid all of them".into(),
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

/// What logits are multiplied with. A temperature too small to divide by still leaves the likeliest tokens.
fn scale(temperature: f32) -> f32 {
    temperature.recip().min(f32::MAX)
}

#[cfg(test)]
mod tests;
