//! What would fit into memory beside a model, by the engine's own reckoning.

use super::capacity::last_that_fits;
use super::drafters::Speculate;
use super::options::EngineOptions;
use super::run::memory_budget;
use super::schedule::Need;
use crate::error::{Error, Result};
use crate::freed::budget_for;
use crate::model::{ModelSpec, VisionFootprint};

/// The tokens of a short chat, a long one and one about files.
const LENGTHS: [usize; 3] = [2048, 8192, 32768];

/// The tokens of a long chat.
const LONG_CHAT: usize = LENGTHS[1];

/// More memory than any machine has.
const BOUNDLESS: u64 = 1 << 60;

/// The memory of an engine, in bytes and in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryFit {
    /// All bytes that the engine may take.
    pub budget: u64,
    /// Bytes for sequences: without the weights, and the work that every step needs.
    pub shared: u64,
    /// The longest sequence that fits, in tokens; no longer than the model's context.
    pub longest: usize,
    /// How many sequences as long as the model's context fit at once.
    pub full_contexts: u64,
    /// The bytes of one sequence of so many tokens, for some lengths that the context holds.
    pub sequences: Vec<(usize, u64)>,
    /// Why not even the shortest sequence fits, if so.
    pub refusal: Option<String>,
}

impl MemoryFit {
    /// Returns the memory budget that an engine needs for its weights and one long chat, or one sequence of the model's context if that is shorter.
    pub(crate) fn needed(
        spec: &ModelSpec,
        draft: Option<&ModelSpec>,
        vision: Option<VisionFootprint>,
        options: &EngineOptions,
    ) -> Result<u64> {
        let options = EngineOptions { memory_budget: Some(BOUNDLESS), ..options.clone() };
        let capacity = memory_budget::capacity(spec, draft, &options)?;
        let capacity = vision.and_then(|it| capacity.with_vision(it, BOUNDLESS)).unwrap_or(capacity);
        Ok(budget_for(capacity.fixed + capacity.sequence(LONG_CHAT.min(spec.context_length)).alone()))
    }

    /// The room that an engine with these options would have, beside a model that drafts and a vision tower. The latter may be left out, and
    /// so may the former where it is not asked for by name.
    pub fn of(
        spec: &ModelSpec,
        draft: Option<&ModelSpec>,
        vision: Option<VisionFootprint>,
        options: &EngineOptions,
    ) -> Result<Self> {
        let budget = memory_budget::budget(options)?;
        let mut capacity = memory_budget::capacity(spec, draft, options);
        if capacity.is_err() && options.draft_model.is_none() && options.speculate == Speculate::Auto {
            capacity = memory_budget::capacity(spec, None, options);
        }
        let capacity = match capacity {
            Ok(capacity) => capacity,
            Err(error @ Error::Option { .. }) => {
                let refusal = Some(error.to_string());
                return Ok(Self {
                    budget,
                    shared: 0,
                    longest: 0,
                    full_contexts: 0,
                    sequences: Vec::new(),
                    refusal,
                });
            }
            Err(other) => return Err(other),
        };
        let capacity = vision.and_then(|vision| capacity.with_vision(vision, budget)).unwrap_or(capacity);
        let shared = capacity.shared();
        let longest =
            last_that_fits(spec.context_length + 1, |tokens| capacity.sequence(tokens).alone() <= shared);
        let Need { own, pass } = capacity.sequence(spec.context_length);
        let full_contexts = shared.saturating_sub(pass) / own.max(1);
        let lengths = LENGTHS.into_iter().filter(|tokens| *tokens <= spec.context_length);
        let sequences = lengths.map(|tokens| (tokens, capacity.sequence(tokens).alone())).collect();
        Ok(Self { budget, shared, longest, full_contexts, sequences, refusal: None })
    }
}
