//! Upper bounds on the memory of texts, in bytes. Invariant: pure. The handle and the loop use the same bounds, so that every text that the
//! handle accepts can run.

use mlx_files::size;

use crate::backend::AttentionKernels;
use crate::engine::jobs::JobMemory;
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
    pass_tokens: usize,
    pub(in crate::engine) memory: JobMemory,
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
        let capacity = Self { encoder, hidden, pass_tokens, memory: JobMemory { budget, fixed } };
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

    /// Returns the maximum number of texts in a pass that is padded to this many tokens. In a small budget, a pass takes at most half of it,
    /// unless one text takes more.
    pub(super) fn texts(&self, tokens: usize) -> usize {
        let mut texts = (self.pass_tokens / tokens.max(1)).max(1);
        let bytes = |texts: usize| texts as u64 * self.own(tokens) + self.encoder.pass(texts, tokens);
        while texts > 1 && bytes(texts) > self.memory.shared() / 2 {
            texts /= 2;
        }
        texts
    }

    /// Returns the memory for a text of this many tokens: its tokens and result, and the largest pass with texts of its length.
    pub(in crate::engine) fn need(&self, tokens: usize) -> Need {
        Need { own: self.own(tokens), pass: self.encoder.pass(self.texts(tokens), tokens) }
    }

    /// Returns the bytes of a text's ids, factors of pooling, and a few vectors.
    fn own(&self, tokens: usize) -> u64 {
        64 * tokens as u64 + 64 * self.hidden as u64 + 1024
    }

    /// Refuses a text that could not run even if it were the only one.
    pub(in crate::engine) fn check(&self, request: CheckedRequest) -> Result<CheckedRequest> {
        let tokens = request.prompt.len();
        let total = self.need(tokens).total();
        if total <= self.memory.shared() {
            return Ok(request);
        }
        let message = format!(
            "needs {} of memory for {tokens} tokens, and {} are there for texts; shorten it, or raise the memory budget",
            size(total),
            size(self.memory.shared())
        );
        Err(Error::request("prompt", message))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::backend::Backend;
    use crate::model;
    use crate::weights::WeightPolicy;

    fn capacity(budget: u64) -> EncoderCapacity {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/encoders/bert-f32");
        let policy = WeightPolicy::new(Backend::CPU, true);
        let (spec, _) = model::inspect(&path, policy).expect("it is described");
        let encoder = spec.encoder.expect("it is an encoder");
        EncoderCapacity::new(&spec, encoder, AttentionKernels::None, budget).expect("it fits")
    }

    #[test]
    fn a_small_budget_limits_the_texts_of_a_pass_and_not_their_length() {
        let wide = capacity(1 << 40);
        let tokens = 40;
        let [one, full] = [1, wide.texts(tokens)].map(|texts| wide.encoder.pass(texts, tokens));
        assert_eq!(wide.texts(tokens), PASS_TOKENS_OF_CPU / tokens);
        // The memory of a pass of one text, but not that of a full pass.
        let small = capacity(budget_for(wide.memory.fixed + wide.own(tokens) + u64::midpoint(one, full)));
        assert!(small.need(tokens).total() <= small.memory.shared(), "a text that fits alone is refused");
        for tokens in [1, 5, 20, 40] {
            let (texts, pass) = (small.texts(tokens) as u64, small.need(tokens).pass);
            assert!(
                texts > 0 && texts * small.own(tokens) + pass <= small.memory.shared(),
                "{texts} texts of {tokens}"
            );
        }
        assert!(small.texts(5) > small.texts(40));
    }
}
