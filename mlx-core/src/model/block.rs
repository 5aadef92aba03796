//! One decoder layer: attention and feed-forward, each behind a norm and beside a residual.

use mlx_rs::Array;
use mlx_rs::ops::add;

use super::attention::Attention;
use super::batch::Batch;
use super::decoder::DecoderConfig;
use super::feed_forward::FeedForward;
use super::norm::RmsNorm;
use crate::cache::LayerCache;
use crate::error::Result;
use crate::weights::Weights;

/// A pre-norm transformer layer.
pub(crate) struct Block {
    attention_norm: RmsNorm,
    attention: Attention,
    feed_forward_norm: RmsNorm,
    feed_forward: FeedForward,
}

impl Block {
    /// Takes the tensors under `{name}.`.
    pub(crate) fn load(weights: &mut Weights, name: &str, config: &DecoderConfig) -> Result<Self> {
        let hidden = config.hidden;
        let norm = |weights: &mut Weights, part: &str| {
            RmsNorm::load(weights, &format!("{name}.{part}"), hidden, config.norm_epsilon)
        };
        Ok(Self {
            attention_norm: norm(weights, "input_layernorm")?,
            attention: Attention::load(weights, &format!("{name}.self_attn"), hidden, &config.attention)?,
            feed_forward_norm: norm(weights, "post_attention_layernorm")?,
            feed_forward: FeedForward::load(weights, &format!("{name}.mlp"), hidden, &config.feed_forward)?,
        })
    }

    /// `[R, hidden]` to the same shape; `caches` holds this layer's cache of each sequence.
    pub(crate) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        caches: &mut [&mut LayerCache],
    ) -> Result<Array> {
        let attended = self.attention.forward(&self.attention_norm.forward(input)?, batch, caches)?;
        let middle = add(input, attended)?;
        let fed = self.feed_forward.forward(&self.feed_forward_norm.forward(&middle)?)?;
        Ok(add(&middle, fed)?)
    }
}
