//! The sampler of one sequence, and the draw.

use std::sync::Arc;

use super::chain::Chain;
use super::constraint::{Constraint, TokenMask};
use super::dry::{Breakers, TokenText};
use super::history::TokenHistory;
use super::logprobs::{TokenLogprob, check_row, score};
use super::math::{argmax, largest, place};
use super::noise::{Stream, uniform};
use super::parameters::SamplingParams;
use super::pending_draw::{Edits, PendingDraw, RandomDraw};
use super::scratch::Scratch;
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
    /// outcome is its own, and a row that cannot be drawn from fails alone.
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
        let draws = requests.iter_mut().map(|DrawRequest { row, sampler, history }| {
            sampler.draw_row(&values[*row * width..(*row + 1) * width], history, scratch)
        });
        Ok(draws.collect())
    }

    /// Draws from one row of f32 logits `[V]` that is on the host already.
    pub fn draw_row(&mut self, raw: &[f32], history: &TokenHistory, scratch: &mut Scratch) -> Result<Draw> {
        check_row(raw)?;
        let mut buffer = std::mem::take(&mut scratch.row);
        let token = self
            .edit(raw, history, &mut buffer, Some(&mut scratch.mask))
            .and_then(|row| self.choose(row, history.len(), scratch));
        scratch.row = buffer;
        let token = token?;
        let logprob = match self.logprobs {
            Some(count) => Some(score(raw, token, count, scratch)?),
            None => None,
        };
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
        check_row(raw)?;
        let mut buffer = std::mem::take(&mut scratch.row);
        let token = self
            .edit(raw, history, &mut buffer, None)
            .and_then(|row| self.choose(row, history.len() + ahead, scratch));
        scratch.row = buffer;
        token
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

    /// The row with bias and penalties and, given a `mask` to compute in, the constraint, in `buffer`; the row itself if there is nothing to
    /// edit.
    fn edit<'a>(
        &mut self,
        raw: &'a [f32],
        history: &TokenHistory,
        buffer: &'a mut Vec<f32>,
        mask: Option<&mut TokenMask>,
    ) -> Result<&'a [f32]> {
        let penalized = self.is_penalized();
        let constraint = self.constraint.as_mut().zip(mask);
        if !penalized && self.params.logit_bias.is_empty() && constraint.is_none() {
            return Ok(raw);
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
        Ok(buffer)
    }

    /// The token that the chain picks from an edited row for a position.
    fn choose(&self, row: &[f32], position: usize, scratch: &mut Scratch) -> Result<u32> {
        if largest(row) == f32::NEG_INFINITY {
            return Err(Error::Sampling(
                "no token is left: logit_bias, penalties or the grammar forbid all of them".into(),
            ));
        }
        let params = &self.params;
        if params.temperature == 0.0 {
            return Ok(argmax(row) as u32);
        }
        let noise = |stream| uniform(params.seed, position as u64, stream);
        let scale = scale(params.temperature);
        if !self.chain.filter(row, noise(Stream::XtcGate), &mut scratch.pool) {
            return Ok(place(row, scale, noise(Stream::Draw), &mut scratch.blocks) as u32);
        }
        let candidates = &scratch.pool.kept;
        scratch.weights.clear();
        scratch.weights.extend(candidates.iter().map(|candidate| candidate.logit));
        let place = place(&scratch.weights, scale, noise(Stream::Draw), &mut scratch.blocks);
        Ok(candidates[place].id)
    }
}

/// What logits are multiplied with. A temperature too small to divide by still leaves the likeliest tokens.
fn scale(temperature: f32) -> f32 {
    temperature.recip().min(f32::MAX)
}

#[cfg(test)]
mod tests;
