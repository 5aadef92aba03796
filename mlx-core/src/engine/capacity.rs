//! Upper bounds on the memory of requests, in bytes. Invariant: pure. The handle and the engine use the same bounds, so that every request
//! that the handle accepts can run.

use mlx_files::size;

use crate::backend::AttentionKernels;
use crate::cache;
use crate::engine::constraint::MATCHER_BYTES;
use crate::engine::request::CheckedRequest;
use crate::engine::schedule::Need;
use crate::engine::schedule::chunks::Chunks;
use crate::error::{Error, Result};
use crate::freed::{budget_for, cache_limit};
use crate::model::{AttentionWork, Footprint, ModelSpec, TowerFootprints};

/// The number of tokens by which the reservation of a request without a token limit grows.
const GROWTH: usize = 1024;

/// The memory that requests share, and the share of each.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Capacity {
    spec: ModelSpec,
    passes: Passes,
    /// The footprint and chunks of the draft model.
    draft: Option<(Footprint, Chunks)>,
    /// The footprints of the towers that can be used.
    towers: TowerFootprints,
    /// All bytes that the engine may use, without freed arrays.
    pub(in crate::engine) budget: u64,
    /// The bytes of the budget for weights and for the activations of every step.
    pub(in crate::engine) fixed: u64,
}

/// The shapes of an engine's passes.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Passes {
    pub(in crate::engine) kernels: AttentionKernels,
    pub(in crate::engine) chunks: Chunks,
    /// The maximum number of rows of a decode pass, including draft rows.
    pub(in crate::engine) rows: usize,
    /// The maximum number of running sequences.
    pub(in crate::engine) running: usize,
}

impl Passes {
    /// Returns the chunks of another model on the same device.
    pub(in crate::engine) fn chunks_of(self, other: &ModelSpec) -> Chunks {
        Chunks::new(self.kernels, other.footprint.attention.row_scores())
    }
}

impl Capacity {
    /// Returns the capacity of an engine with a budget of `total_budget` bytes, these passes and an optional draft model. `other_bytes` go
    /// to other uses. It is an error if not even the shortest request fits.
    pub(in crate::engine) fn new(
        spec: &ModelSpec,
        draft: Option<&ModelSpec>,
        passes: Passes,
        other_bytes: u64,
        total_budget: u64,
    ) -> Result<Self> {
        let Passes { chunks, rows, running, .. } = passes;
        let (footprint, budget) = (spec.footprint, total_budget - cache_limit(total_budget));
        // The passes of a step run one after the other, but their logits exist at the same time. The next step is computed while the logits
        // of the previous one are read.
        let logits = 2 * running.next_multiple_of(rows) as u64 * footprint.logits_per_row;
        let step = footprint.pass(rows) + logits;
        let drafting = draft.map_or(0, |draft| drafting(draft, passes));
        let fixed = spec.weight_bytes + drafting + step + footprint.pass(chunks.shared_rows()) + other_bytes;
        let draft = draft.map(|draft| (draft.footprint, passes.chunks_of(draft)));
        let capacity =
            Self { spec: spec.clone(), passes, draft, towers: TowerFootprints::default(), budget, fixed };
        let minimum = capacity.sequence(1).total();
        if fixed + minimum > budget {
            let needed = budget_for(fixed + minimum);
            let message = format!(
                "is {}; the model and its work take {} and the shortest request {}: give at least {}MiB",
                size(total_budget),
                size(fixed),
                size(minimum),
                needed.div_ceil(1 << 20)
            );
            return Err(Error::option("memory_budget", message));
        }
        Ok(capacity)
    }

    /// Returns the capacity with another tower, or `None` if it does not fit. `with` adds the tower. This machine's budget is `total_budget`
    /// bytes.
    pub(in crate::engine) fn with_tower(
        &self,
        with: impl FnOnce(&mut TowerFootprints),
        total_budget: u64,
    ) -> Option<Self> {
        let mut towers = self.towers;
        with(&mut towers);
        let weight_bytes = towers.weight_bytes() - self.towers.weight_bytes();
        let fixed = self.fixed + weight_bytes;
        // A budget that another machine limits is not reduced by weights that only this machine holds.
        let budget = (self.budget + weight_bytes).min(total_budget - cache_limit(total_budget));
        let fits = fixed + self.sequence(1).total() <= budget;
        fits.then(|| Self { towers, budget, fixed, ..self.clone() })
    }

    /// Returns the capacity with those of these towers that fit.
    pub(in crate::engine) fn with_towers(self, towers: TowerFootprints, total_budget: u64) -> Self {
        let seeing = towers.vision.and_then(|it| self.with_tower(|all| all.vision = Some(it), total_budget));
        let capacity = seeing.unwrap_or(self);
        let hearing =
            towers.audio.and_then(|it| capacity.with_tower(|all| all.audio = Some(it), total_budget));
        hearing.unwrap_or(capacity)
    }

    /// Returns the minimum number of bytes of a state with this many positions.
    pub(in crate::engine) fn state_bytes(&self, positions: usize) -> u64 {
        self.spec.footprint.fixed + self.spec.footprint.per_token * cache::capacity(positions) as u64
    }

    /// Returns the maximum number of bytes of a checkpoint; 0 if states can be truncated anywhere.
    pub(in crate::engine) fn checkpoint_bytes(&self) -> u64 {
        self.spec.footprint.checkpoint()
    }

    /// Returns the bytes of the weights, including the towers' weights.
    pub(in crate::engine) fn weights(&self) -> u64 {
        self.spec.weight_bytes + self.towers.weight_bytes()
    }

    /// Returns the bytes that all requests share.
    pub(in crate::engine) fn shared(&self) -> u64 {
        self.budget - self.fixed
    }

    /// Returns the memory for a sequence of up to `tokens` tokens that reports `per_token` bytes for each. Pictures make its chunks longer
    /// by at most `undivided` tokens. After a preemption the whole sequence is computed in chunks, including its answer.
    fn need(&self, undivided: usize, tokens: usize, per_token: u64) -> Need {
        let (footprint, Passes { kernels, chunks, rows, .. }) = (self.spec.footprint, self.passes);
        // A text longer than the context shifts, so its cache never exceeds the context.
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

    fn need_of(&self, request: &CheckedRequest, tokens: usize) -> Need {
        let mut need = self.need(undivided(request), tokens, per_token(request));
        need.own += self.other_bytes(request);
        need
    }

    /// Returns the bytes of a request that do not depend on its length: the tables of its constraint, its pictures and clips
    /// with their features, and the activations of each tower for one of them.
    fn other_bytes(&self, request: &CheckedRequest) -> u64 {
        let matcher = if request.constraint.is_some() { MATCHER_BYTES as u64 } else { 0 };
        let media = &request.media;
        let pictures = self.towers.vision.map_or(0, |vision| vision.request(media.pictures()));
        let clips = self.towers.audio.map_or(0, |audio| audio.request(media.clips()));
        matcher + pictures + clips + media.bytes() as u64
    }

    /// Refuses a request that could not run even if it were the only one. A request without a token limit is limited to what fits.
    pub(in crate::engine) fn check(&self, mut request: CheckedRequest) -> Result<CheckedRequest> {
        let prompt = request.prompt.len();
        let total = self.need_of(&request, prompt + request.limits.max_tokens).total();
        if total <= self.shared() {
            return Ok(request);
        }
        let minimum = self.need_of(&request, prompt + request.limits.max_tokens.min(1)).total();
        let too_much = |field, bytes: u64, advice: &str| {
            let message = format!(
                "needs {} of memory for {prompt} tokens of prompt and what follows, and {} are there for requests; {advice}, or \
                 raise the memory budget",
                size(bytes),
                size(self.shared())
            );
            Err(Error::request(field, message))
        };
        if minimum > self.shared() {
            return too_much("prompt", minimum, "shorten it");
        }
        if !request.open_ended {
            return too_much("max_tokens", total, "lower it");
        }
        let fits = |tokens: usize| self.need_of(&request, prompt + tokens).total() <= self.shared();
        request.limits.max_tokens = last_that_fits(request.limits.max_tokens, fits);
        Ok(request)
    }

    /// Returns the reservation of a request at its start.
    pub(in crate::engine) fn initial_reservation(&self, request: &CheckedRequest) -> Reservation {
        let most = request.prompt.len() + request.limits.max_tokens;
        let length = request.prompt.len() + request.resume.tokens.len();
        let tokens = if request.open_ended { most.min(length + GROWTH) } else { most };
        let need = self.need_of(request, tokens);
        let (undivided, per_token, other_bytes) =
            (undivided(request), per_token(request), self.other_bytes(request));
        Reservation { undivided, tokens, most, per_token, other_bytes, need }
    }

    /// Extends a reservation to more tokens. Returns the additional bytes, and the wider pass.
    pub(in crate::engine) fn extend(&self, reservation: &mut Reservation) -> Need {
        reservation.tokens = reservation.most.min(reservation.tokens + GROWTH);
        let mut need = self.need(reservation.undivided, reservation.tokens, reservation.per_token);
        need.own += reservation.other_bytes;
        let more = Need { own: need.own - reservation.need.own, ..need };
        reservation.need = need;
        more
    }
}

/// Returns the bytes of a draft model for the requests of these passes: weights, passes and logits.
pub(in crate::engine) fn drafting(draft: &ModelSpec, passes: Passes) -> u64 {
    let (footprint, rows) = (draft.footprint, passes.chunks_of(draft).shared_rows().max(passes.running));
    draft.weight_bytes + footprint.pass(rows) + passes.running as u64 * footprint.logits_per_row
}

/// Returns the attention bytes of the widest chunk of a prompt of `length` tokens, with pictures that lengthen a chunk by `undivided` rows.
fn widest_chunk(attention: AttentionWork, chunks: Chunks, length: usize, undivided: usize) -> u64 {
    let chunks = chunks.deepest(length);
    chunks.map(|(rows, depth)| attention.span(rows + undivided, depth)).fold(0, u64::max)
}

/// Returns the bytes of the alternatives that a request reports with each token.
fn per_token(request: &CheckedRequest) -> u64 {
    16 * request.logprobs.max(request.prompt_logprobs).unwrap_or(0) as u64
}

/// Returns the largest number below `limit` for which `fits` is true. `fits` must be true for 1 and monotonic.
pub(in crate::engine) fn last_that_fits(limit: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (1, limit);
    while low + 1 < high {
        let middle = usize::midpoint(low, high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

/// Returns the maximum number of tokens by which an undivided picture lengthens a chunk.
fn undivided(request: &CheckedRequest) -> usize {
    request.media.undivided().longest()
}

/// The memory reserved for a sequence.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Reservation {
    undivided: usize,
    /// The length that the reservation covers.
    pub(in crate::engine) tokens: usize,
    /// The maximum length of the sequence.
    most: usize,
    per_token: u64,
    other_bytes: u64,
    pub(in crate::engine) need: Need,
}

#[cfg(test)]
mod tests;
