//! What a request may cost at most, in bytes. Invariant: pure; handle and engine ask here, so that what the one lets in the other
//! can run.

use mlx_files::size;

use crate::backend::AttentionKernels;
use crate::cache;
use crate::engine::constraint::MATCHER_BYTES;
use crate::engine::request::GenerationRequest;
use crate::engine::schedule::Need;
use crate::engine::schedule::chunks::Chunks;
use crate::error::{Error, Result};
use crate::freed::{budget_for, freed};
use crate::model::{AttentionWork, Footprint, ModelSpec, VisionFootprint};

/// A request of open length is promised room for this many tokens at a time.
const GROWTH: usize = 1024;

/// The memory that requests share, and what each takes of it.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Capacity {
    spec: ModelSpec,
    passes: Passes,
    /// What a model that drafts takes.
    draft: Option<(Footprint, Chunks)>,
    /// What a vision tower takes.
    vision: Option<VisionFootprint>,
    /// All bytes that the engine may take, without those of freed arrays.
    pub(in crate::engine) budget: u64,
    /// Of these, weights and what every step needs.
    pub(in crate::engine) fixed: u64,
}

/// The shapes of an engine's passes.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Passes {
    pub(in crate::engine) kernels: AttentionKernels,
    pub(in crate::engine) chunks: Chunks,
    /// The most rows of a decode pass, with those of drafts.
    pub(in crate::engine) rows: usize,
    /// The most requests that run.
    pub(in crate::engine) running: usize,
}

impl Passes {
    /// Chunks of another model on the same device.
    pub(in crate::engine) fn chunks_of(self, other: &ModelSpec) -> Chunks {
        Chunks::new(self.kernels, other.footprint.attention.row_scores())
    }
}

impl Capacity {
    /// The capacity of an engine of `given` bytes with these passes, for which another model may draft, and which takes `beside` bytes for
    /// other things; or why there is none.
    pub(in crate::engine) fn new(
        spec: &ModelSpec,
        draft: Option<&ModelSpec>,
        passes: Passes,
        beside: u64,
        given: u64,
    ) -> Result<Self> {
        let Passes { chunks, rows, running, .. } = passes;
        let (footprint, budget) = (spec.footprint, given - freed(given));
        // The passes of a step come one after the other, but their logits are there together; and one step is computed while the
        // logits of the one before are read.
        let logits = 2 * running.next_multiple_of(rows) as u64 * footprint.logits_per_row;
        let step = footprint.pass(rows) + logits;
        let drafting = draft.map_or(0, |draft| drafting(draft, passes));
        let fixed = spec.weight_bytes + drafting + step + footprint.pass(chunks.shared_rows()) + beside;
        let draft = draft.map(|draft| (draft.footprint, passes.chunks_of(draft)));
        let capacity = Self { spec: spec.clone(), passes, draft, vision: None, budget, fixed };
        let least = capacity.sequence(1).alone();
        if fixed + least > budget {
            let needed = budget_for(fixed + least);
            let message = format!(
                "is {}; the model and its work take {} and the shortest request {}: give at least {}MiB",
                size(given),
                size(fixed),
                size(least),
                needed.div_ceil(1 << 20)
            );
            return Err(Error::option("memory_budget", message));
        }
        Ok(capacity)
    }

    /// The same beside a vision tower, if there is room for it where this machine may take `given` bytes.
    pub(in crate::engine) fn with_vision(&self, vision: VisionFootprint, given: u64) -> Option<Self> {
        let fixed = self.fixed + vision.weight_bytes;
        // A budget that is what another machine can keep is not made smaller by what this one alone holds.
        let budget = (self.budget + vision.weight_bytes).min(given - freed(given));
        let fits = fixed + self.sequence(1).alone() <= budget;
        fits.then(|| Self { vision: Some(vision), budget, fixed, ..self.clone() })
    }

    /// The fewest bytes that a state of so many positions takes.
    pub(in crate::engine) fn state_bytes(&self, positions: usize) -> u64 {
        self.spec.footprint.fixed + self.spec.footprint.per_token * cache::capacity(positions) as u64
    }

    /// Bytes of a checkpoint at most; 0 if states can be cut anywhere.
    pub(in crate::engine) fn checkpoint_bytes(&self) -> u64 {
        self.spec.footprint.checkpoint()
    }

    /// Bytes of the weights, with those of the vision tower.
    pub(in crate::engine) fn weights(&self) -> u64 {
        self.spec.weight_bytes + self.vision.map_or(0, |vision| vision.weight_bytes)
    }

    /// Bytes that all requests share.
    pub(in crate::engine) fn shared(&self) -> u64 {
        self.budget - self.fixed
    }

    /// Returns the memory for a sequence of up to `tokens` tokens that reports `per_token` bytes for each. Pictures make its chunks longer by
    /// at most `undivided` tokens. After a preemption the whole sequence is computed in chunks, including its answer.
    fn need(&self, undivided: usize, tokens: usize, per_token: u64) -> Need {
        let (footprint, Passes { kernels, chunks, rows, .. }) = (self.spec.footprint, self.passes);
        // A text that is longer than the context slides: its cache never is.
        let held = tokens.min(self.spec.context_length);
        let attention = footprint.attention;
        let drafting = self.draft.map_or(0, |(draft, chunks)| {
            draft.state(held, chunks.longest()) + draft.checkpoint() + draft.attention.span(1, held)
        });
        // Text, ids and events of a token take less than 256 bytes.
        let state = footprint.state(held, chunks.longest() + undivided);
        let own = state + attention.span(1, held) + drafting + tokens as u64 * (256 + per_token);
        let chunk = widest_chunk(attention, chunks, held, undivided);
        let drafted = self.draft.map_or(0, |(it, chunks)| widest_chunk(it.attention, chunks, held, 0));
        let chunk = chunk.max(drafted) + footprint.pass(undivided);
        match kernels {
            // A CPU has up to a hundred operations in flight, so chunks of several sequences overlap.
            AttentionKernels::None => Need { own: own + chunk, pass: 0 },
            _ => Need { own, pass: chunk.max(attention.verification(rows, held)) },
        }
    }

    /// Returns the memory for a sequence of `tokens` tokens without pictures.
    pub(in crate::engine) fn sequence(&self, tokens: usize) -> Need {
        self.need(0, tokens, 0)
    }

    fn need_of(&self, request: &GenerationRequest, tokens: usize) -> Need {
        let mut need = self.need(undivided(request), tokens, per_token(request));
        need.own += self.beside(request);
        need
    }

    /// Bytes of a request that do not depend on its length: the tables of its constraint, its pictures with their features, and the tower's
    /// work on one of them.
    fn beside(&self, request: &GenerationRequest) -> u64 {
        let matcher = if request.constraint.is_some() { MATCHER_BYTES as u64 } else { 0 };
        let images = request.pictures.images();
        let pictures = self.vision.map_or(0, |vision| vision.request(images));
        matcher + pictures + request.pictures.bytes() as u64
    }

    /// Refuses a request that could not run even alone; an open one may grow as far as the memory reaches.
    pub(in crate::engine) fn check(&self, mut request: GenerationRequest) -> Result<GenerationRequest> {
        let prompt = request.prompt.len();
        let whole = self.need_of(&request, prompt + request.limits.max_tokens).alone();
        if whole <= self.shared() {
            return Ok(request);
        }
        let least = self.need_of(&request, prompt + request.limits.max_tokens.min(1)).alone();
        let too_much = |field, bytes: u64, advice: &str| {
            let message = format!(
                "needs {} of memory for {prompt} tokens of prompt and what follows, and {} are there for requests; {advice}, or \
                 raise the memory budget",
                size(bytes),
                size(self.shared())
            );
            Err(Error::request(field, message))
        };
        if least > self.shared() {
            return too_much("prompt", least, "shorten it");
        }
        if !request.open_ended {
            return too_much("max_tokens", whole, "lower it");
        }
        let fits = |tokens: usize| self.need_of(&request, prompt + tokens).alone() <= self.shared();
        request.limits.max_tokens = last_that_fits(request.limits.max_tokens, fits);
        Ok(request)
    }

    /// The reservation of a request at its start.
    pub(in crate::engine) fn initial_reservation(&self, request: &GenerationRequest) -> Reservation {
        let most = request.prompt.len() + request.limits.max_tokens;
        let tokens = if request.open_ended { most.min(request.prompt.len() + GROWTH) } else { most };
        let need = self.need_of(request, tokens);
        let (undivided, per_token, beside) = (undivided(request), per_token(request), self.beside(request));
        Reservation { undivided, tokens, most, per_token, beside, need }
    }

    /// Extends a reservation to more tokens; returns the bytes that this takes in addition, and the wider pass.
    pub(in crate::engine) fn extend(&self, reservation: &mut Reservation) -> Need {
        reservation.tokens = reservation.most.min(reservation.tokens + GROWTH);
        let mut need = self.need(reservation.undivided, reservation.tokens, reservation.per_token);
        need.own += reservation.beside;
        let more = Need { own: need.own - reservation.need.own, ..need };
        reservation.need = need;
        more
    }
}

/// Bytes of a model that drafts for the requests of these passes, and of its own passes.
pub(in crate::engine) fn drafting(draft: &ModelSpec, passes: Passes) -> u64 {
    let (footprint, rows) = (draft.footprint, passes.chunks_of(draft).shared_rows().max(passes.running));
    draft.weight_bytes + footprint.pass(rows) + passes.running as u64 * footprint.logits_per_row
}

/// Bytes of attention in the widest chunk of a prompt of `length` tokens, with pictures that make a chunk longer by `undivided` rows.
fn widest_chunk(attention: AttentionWork, chunks: Chunks, length: usize, undivided: usize) -> u64 {
    let chunks = chunks.deepest(length);
    chunks.map(|(rows, depth)| attention.span(rows + undivided, depth)).fold(0, u64::max)
}

/// Bytes of the alternatives that a request has reported for each token.
fn per_token(request: &GenerationRequest) -> u64 {
    16 * request.logprobs.max(request.prompt_logprobs).unwrap_or(0) as u64
}

/// The largest number below `limit` that fits, where 1 does and what is smaller does sooner.
pub(in crate::engine) fn last_that_fits(limit: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (1, limit);
    while low + 1 < high {
        let middle = usize::midpoint(low, high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

/// The tokens by which a picture that is not divided makes a chunk longer, at most.
fn undivided(request: &GenerationRequest) -> usize {
    request.pictures.undivided().longest()
}

/// What a sequence has been promised.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Reservation {
    undivided: usize,
    /// The length up to which it covers the sequence.
    pub(in crate::engine) tokens: usize,
    /// The longest that the sequence may become.
    most: usize,
    per_token: u64,
    beside: u64,
    pub(in crate::engine) need: Need,
}

#[cfg(test)]
mod tests;
