//! Estimates how many sequences fit into memory with a model. It uses the engine's own accounting.

use super::capacity::last_that_fits;
use super::drafters::Speculate;
use super::encoding::EncoderCapacity;
use super::listening::ListeningCapacity;
use super::options::EngineOptions;
use super::run::memory_budget;
use super::schedule::Need;
use crate::error::{Error, Result};
use crate::freed::budget_for;
use crate::model::{ModelSpec, TowerFootprints};

/// Lengths of a short chat, a long chat and a chat about files, in tokens.
const LENGTHS: [usize; 3] = [2048, 8192, 32768];

/// The length of a long chat, in tokens.
const LONG_CHAT: usize = LENGTHS[1];

/// More memory than any machine has, in bytes.
const BOUNDLESS: u64 = 1 << 60;

/// The memory of an engine, in bytes and in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryFit {
    /// All bytes that the engine may use.
    pub budget: u64,
    /// Bytes for sequences, excluding the weights and the activations that every step needs.
    pub shared: u64,
    /// The length of the longest sequence that fits, in tokens; at most the model's context.
    pub longest: usize,
    /// The number of full-context sequences that fit at once.
    pub full_contexts: u64,
    /// Pairs of a length in tokens and the bytes of a sequence of that length, for lengths within the context.
    pub sequences: Vec<(usize, u64)>,
    /// The reason why not even the shortest sequence fits, if none does.
    pub refusal: Option<String>,
}

impl MemoryFit {
    /// Returns the memory budget that an engine needs for its weights and one long chat, or one sequence of the model's context if that is
    /// shorter.
    pub(crate) fn needed(
        spec: &ModelSpec,
        draft: Option<&ModelSpec>,
        towers: TowerFootprints,
        options: &EngineOptions,
    ) -> Result<u64> {
        let options = EngineOptions { memory_budget: Some(BOUNDLESS), ..options.clone() };
        if spec.encoder.is_some() {
            let capacity = EncoderCapacity::of(spec, &options)?;
            return Ok(budget_for(capacity.memory.fixed + capacity.need(spec.context_length).total()));
        }
        if spec.whisper.is_some() {
            let capacity = ListeningCapacity::of(spec, &options)?;
            return Ok(budget_for(capacity.memory.fixed + capacity.need().total()));
        }
        let capacity = memory_budget::capacity(spec, draft, &options)?;
        let capacity = capacity.with_towers(towers, BOUNDLESS);
        Ok(budget_for(capacity.fixed + capacity.sequence(LONG_CHAT.min(spec.context_length)).total()))
    }

    /// Estimates the memory of an engine with these options, a draft model and towers. If they do not fit, it omits the towers, and it omits
    /// a draft model that the options do not name.
    pub fn of(
        spec: &ModelSpec,
        draft: Option<&ModelSpec>,
        towers: TowerFootprints,
        options: &EngineOptions,
    ) -> Result<Self> {
        let budget = memory_budget::budget(options)?;
        if spec.encoder.is_some() {
            return Self::of_encoder(spec, options, budget);
        }
        if spec.whisper.is_some() {
            return Self::of_windows(spec, options, budget);
        }
        let mut capacity = memory_budget::capacity(spec, draft, options);
        if capacity.is_err() && options.draft_model.is_none() && options.speculate == Speculate::Auto {
            capacity = memory_budget::capacity(spec, None, options);
        }
        let capacity = match capacity {
            Ok(capacity) => capacity,
            Err(error @ Error::Option { .. }) => return Ok(Self::refused(budget, &error)),
            Err(other) => return Err(other),
        };
        let capacity = capacity.with_towers(towers, budget);
        let shared = capacity.shared();
        let longest =
            last_that_fits(spec.context_length + 1, |tokens| capacity.sequence(tokens).total() <= shared);
        let Need { own, pass } = capacity.sequence(spec.context_length);
        let full_contexts = shared.saturating_sub(pass) / own.max(1);
        let lengths = LENGTHS.into_iter().filter(|tokens| *tokens <= spec.context_length);
        let sequences = lengths.map(|tokens| (tokens, capacity.sequence(tokens).total())).collect();
        Ok(Self { budget, shared, longest, full_contexts, sequences, refusal: None })
    }

    /// Estimates the memory of an encoder's engine. Texts of the full context share passes.
    fn of_encoder(spec: &ModelSpec, options: &EngineOptions, budget: u64) -> Result<Self> {
        let capacity = match EncoderCapacity::of(spec, options) {
            Ok(capacity) => capacity,
            Err(error @ Error::Option { .. }) => return Ok(Self::refused(budget, &error)),
            Err(other) => return Err(other),
        };
        let (shared, total) = (capacity.memory.shared(), |tokens: usize| capacity.need(tokens).total());
        let longest = last_that_fits(spec.context_length + 1, |tokens| total(tokens) <= shared);
        let Need { own, pass } = capacity.need(spec.context_length);
        let full_contexts = shared.saturating_sub(pass) / own.max(1);
        let lengths = LENGTHS.into_iter().filter(|tokens| *tokens <= spec.context_length);
        let sequences = lengths.map(|tokens| (tokens, total(tokens))).collect();
        Ok(Self { budget, shared, longest, full_contexts, sequences, refusal: None })
    }

    /// Estimates the memory of a speech recognizer's engine. All of its windows have the same size.
    fn of_windows(spec: &ModelSpec, options: &EngineOptions, budget: u64) -> Result<Self> {
        let capacity = match ListeningCapacity::of(spec, options) {
            Ok(capacity) => capacity,
            Err(error @ Error::Option { .. }) => return Ok(Self::refused(budget, &error)),
            Err(other) => return Err(other),
        };
        let (shared, Need { own, pass }) = (capacity.memory.shared(), capacity.need());
        let full_contexts = shared.saturating_sub(pass) / own.max(1);
        let longest = spec.context_length;
        Ok(Self { budget, shared, longest, full_contexts, sequences: Vec::new(), refusal: None })
    }

    fn refused(budget: u64, error: &Error) -> Self {
        let refusal = Some(error.to_string());
        Self { budget, shared: 0, longest: 0, full_contexts: 0, sequences: Vec::new(), refusal }
    }
}
