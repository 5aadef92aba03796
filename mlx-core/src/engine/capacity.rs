//! What a request may cost at most, in bytes. Invariant: pure; handle and engine ask here, so that what the one lets in the other
//! can run.

use mlx_files::size;

use crate::cache;
use crate::engine::constraint::MATCHER_BYTES;
use crate::engine::request::GenerationRequest;
use crate::engine::schedule::chunks::Chunks;
use crate::error::{Error, Result};
use crate::freed::{budget_for, freed};
use crate::model::{Footprint, ModelSpec, VisionFootprint};

/// A request of open length is promised room for this many tokens at a time.
const GROWTH: usize = 1024;

/// The memory that requests share, and what each takes of it.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Capacity {
    spec: ModelSpec,
    /// What a model that drafts takes.
    draft: Option<Footprint>,
    /// What a vision tower takes.
    vision: Option<VisionFootprint>,
    chunks: Chunks,
    /// All bytes that the engine may take, without those of freed arrays.
    pub(in crate::engine) budget: u64,
    /// Of these, weights and what every step needs.
    pub(in crate::engine) fixed: u64,
}

impl Capacity {
    /// The capacity of an engine of `given` bytes whose steps are passes of at most `rows` rows for up to `running` requests, for which
    /// another model may draft, and which takes `beside` bytes for other things; or why there is none.
    pub(in crate::engine) fn new(
        spec: &ModelSpec,
        draft: Option<&ModelSpec>,
        chunks: Chunks,
        rows: usize,
        running: usize,
        beside: u64,
        given: u64,
    ) -> Result<Self> {
        let (footprint, budget) = (spec.footprint, given - freed(given));
        // The passes of a step come one after the other, but their logits are there together; and one step is computed while the
        // logits of the one before are read.
        let logits = 2 * running.next_multiple_of(rows) as u64 * footprint.logits_per_row;
        let step = footprint.pass(rows, 0) + logits;
        let drafting = draft.map_or(0, |draft| drafting(draft, chunks, running));
        let fixed = spec.weight_bytes + drafting + step + footprint.pass(chunks.shared_rows(), 0) + beside;
        let draft = draft.map(|draft| draft.footprint);
        let capacity = Self { spec: spec.clone(), draft, vision: None, chunks, budget, fixed };
        let least = capacity.sequence(1);
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
        let fits = fixed + self.sequence(1) <= budget;
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

    /// Bytes of a sequence of up to `tokens` tokens, each of which reports `per_token` bytes.
    fn need(&self, prompt: Prompt, tokens: usize, per_token: u64) -> u64 {
        let (footprint, Prompt { length: prompt, undivided }) = (self.spec.footprint, prompt);
        // A text that is longer than the context slides: its cache never is.
        let held = tokens.min(self.spec.context_length);
        let rows =
            (self.chunks.rows_by_depth(prompt.min(held)) + undivided * prompt.min(held)).max(held) as u64;
        let run = self.chunks.longest() + undivided;
        let scores = rows * footprint.scores_per_position;
        let drafting = self.draft.map_or(0, |draft| {
            let state = draft.state(held, self.chunks.longest()) + draft.checkpoint();
            state + rows * draft.scores_per_position
        });
        // Text, ids and events of a token take less than 256 bytes.
        let state = footprint.state(held, run) + footprint.pass(undivided, 0);
        state + scores + drafting + tokens as u64 * (256 + per_token)
    }

    /// Bytes of a sequence of `tokens` tokens, all of which may be its prompt.
    pub(in crate::engine) fn sequence(&self, tokens: usize) -> u64 {
        self.need(Prompt { length: tokens, undivided: 0 }, tokens, 0)
    }

    fn need_of(&self, request: &GenerationRequest, tokens: usize) -> u64 {
        self.need(Prompt::of(request), tokens, per_token(request)) + self.beside(request)
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
        let whole = self.need_of(&request, prompt + request.limits.max_tokens);
        if whole <= self.shared() {
            return Ok(request);
        }
        let least = self.need_of(&request, prompt + request.limits.max_tokens.min(1));
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
        let fits = |tokens: usize| self.need_of(&request, prompt + tokens) <= self.shared();
        request.limits.max_tokens = last_that_fits(request.limits.max_tokens, fits);
        Ok(request)
    }

    /// The reservation of a request at its start.
    pub(in crate::engine) fn initial_reservation(&self, request: &GenerationRequest) -> Reservation {
        let most = request.prompt.len() + request.limits.max_tokens;
        let tokens = if request.open_ended { most.min(request.prompt.len() + GROWTH) } else { most };
        let bytes = self.need_of(request, tokens);
        let (prompt, per_token, beside) = (Prompt::of(request), per_token(request), self.beside(request));
        Reservation { prompt, tokens, most, per_token, beside, bytes }
    }

    /// Extends a reservation to more tokens; returns the bytes that this takes in addition.
    pub(in crate::engine) fn extend(&self, reservation: &mut Reservation) -> u64 {
        reservation.tokens = reservation.most.min(reservation.tokens + GROWTH);
        let bytes =
            self.need(reservation.prompt, reservation.tokens, reservation.per_token) + reservation.beside;
        let more = bytes - reservation.bytes;
        reservation.bytes = bytes;
        more
    }
}

/// Bytes of a model that drafts for up to `running` requests, and of its passes.
pub(in crate::engine) fn drafting(draft: &ModelSpec, chunks: Chunks, running: usize) -> u64 {
    let (footprint, rows) = (draft.footprint, chunks.shared_rows().max(running));
    draft.weight_bytes + footprint.pass(rows, 0) + running as u64 * footprint.logits_per_row
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

/// The shape of a prompt.
#[derive(Debug, Clone, Copy)]
struct Prompt {
    /// In tokens.
    length: usize,
    /// The tokens by which a picture that is not divided makes a chunk longer, at most.
    undivided: usize,
}

impl Prompt {
    fn of(request: &GenerationRequest) -> Self {
        Self { length: request.prompt.len(), undivided: request.pictures.undivided().longest() }
    }
}

/// What a sequence has been promised.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Reservation {
    prompt: Prompt,
    /// The length up to which it covers the sequence.
    pub(in crate::engine) tokens: usize,
    /// The longest that the sequence may become.
    most: usize,
    per_token: u64,
    beside: u64,
    /// The bytes.
    pub(in crate::engine) bytes: u64,
}
