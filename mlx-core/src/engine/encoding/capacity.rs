//! Upper bounds on the memory of texts, in bytes. Invariant: pure. The handle and the loop use the same bounds, so that every text that the
//! handle accepts can run.

use mlx_files::size;

use crate::backend::AttentionKernels;
use crate::engine::options::EngineOptions;
use crate::engine::request::CheckedRequest;
use crate::engine::run::memory_budget::budget;
use crate::engine::schedule::Need;
use crate::error::{Error, Result};
use crate::freed::{budget_for, cache_limit};
use crate::model::{EncoderSpec, ModelSpec};

/// The maximum number of tokens of a pass, with padding, unless a single text is longer. Larger passes are not faster.
const PASS_TOKENS_OF_GPU: usize = 8192;
const PASS_TOKENS_OF_CPU: usize = 1024;

/// The memory that texts share, and the share of each.
#[derive(Debug, Clone)]
pub(in crate::engine) struct EncoderCapacity {
    encoder: EncoderSpec,
    hidden: usize,
    pub(in crate::engine) pass_tokens: usize,
    /// All bytes that the engine may use, excluding those of freed arrays.
    pub(in crate::engine) budget: u64,
    /// The bytes of the weights.
    pub(in crate::engine) fixed: u64,
}

impl EncoderCapacity {
    /// Returns the capacity of an encoder with these options.
    pub(in crate::engine) fn of(spec: &ModelSpec, options: &EngineOptions) -> Result<Self> {
        let missing = || Error::Internal("the model is no encoder".into());
        let (encoder, kernels) = (spec.encoder.ok_or_else(missing)?, options.backend()?.attention_kernels);
        Self::new(spec, encoder, kernels, budget(options)?)
    }

    /// Returns the capacity of an encoder with a budget of `total_budget` bytes. It is an error if not even the shortest text fits.
    fn new(
        spec: &ModelSpec,
        encoder: EncoderSpec,
        kernels: AttentionKernels,
        total_budget: u64,
    ) -> Result<Self> {
        let pass_tokens = match kernels {
            AttentionKernels::None => PASS_TOKENS_OF_CPU,
            AttentionKernels::Metal | AttentionKernels::Cuda => PASS_TOKENS_OF_GPU,
        };
        let budget = total_budget - cache_limit(total_budget);
        let (fixed, hidden) = (spec.weight_bytes, spec.hidden_size);
        let mut capacity = Self { encoder, hidden, pass_tokens, budget, fixed };
        // A small budget gets smaller passes.
        while capacity.pass_tokens > 1 && fixed + 2 * capacity.need(1).total() > budget {
            capacity.pass_tokens /= 2;
        }
        let minimum = capacity.need(1).total();
        if fixed + minimum > budget {
            let message = format!(
                "is {}; the model takes {} and the shortest text {}: give at least {}MiB",
                size(total_budget),
                size(fixed),
                size(minimum),
                budget_for(fixed + minimum).div_ceil(1 << 20)
            );
            return Err(Error::option("memory_budget", message));
        }
        Ok(capacity)
    }

    /// Returns the bytes that all texts share.
    pub(in crate::engine) fn shared(&self) -> u64 {
        self.budget - self.fixed
    }

    /// Returns the memory for a text of this many tokens: its tokens and result, and the largest pass with texts of its length.
    pub(in crate::engine) fn need(&self, tokens: usize) -> Need {
        let texts = (self.pass_tokens / tokens.max(1)).max(1);
        // Ids, factors of pooling, and a few vectors.
        let own = 64 * tokens as u64 + 64 * self.hidden as u64 + 1024;
        Need { own, pass: self.encoder.pass(texts, tokens) }
    }

    /// Refuses a text that could not run even if it were the only one.
    pub(in crate::engine) fn check(&self, request: CheckedRequest) -> Result<CheckedRequest> {
        let tokens = request.prompt.len();
        let total = self.need(tokens).total();
        if total <= self.shared() {
            return Ok(request);
        }
        let message = format!(
            "needs {} of memory for {tokens} tokens, and {} are there for texts; shorten it, or raise the memory budget",
            size(total),
            size(self.shared())
        );
        Err(Error::request("prompt", message))
    }
}
