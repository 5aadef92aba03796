//! One decoder layer: attention and feed-forward, each between norms and beside a residual.

use mlx_rs::Array;
use mlx_rs::ops::{add, multiply};

use super::attention::Attention;
use super::batch::{Batch, Layout};
use super::decoder::{DecoderConfig, LayerConfig};
use super::feed_forward::FeedForward;
use super::moe::Experts;
use super::norm::Norm;
use super::rope::Turn;
use crate::array::scalar_like;
use crate::cache::LayerCache;
use crate::error::Result;
use crate::weights::Weights;

/// Which norms a layer has, by the names of their tensors, and how its parts are added up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockConfig {
    /// Before attention.
    pub attention_norm: Option<&'static str>,
    /// After attention, before it is added.
    pub attended_norm: Option<&'static str>,
    /// Before the feed-forward block.
    pub feed_forward_norm: Option<&'static str>,
    /// After the feed-forward block, before it is added.
    pub fed_norm: Option<&'static str>,
    /// Whether the feed-forward block reads what attention reads, instead of what attention made of it.
    pub parallel: bool,
    /// What both are multiplied with before they are added.
    pub multiplier: Option<f32>,
}

impl BlockConfig {
    /// As llama has it: a norm before each part.
    pub const LLAMA: Self = Self {
        attention_norm: Some("input_layernorm"),
        attended_norm: None,
        feed_forward_norm: Some("post_attention_layernorm"),
        fed_norm: None,
        parallel: false,
        multiplier: None,
    };
}

/// The part of a layer that looks at each row alone.
enum Inner {
    Dense(FeedForward),
    Sparse(Experts),
}

/// A transformer layer.
pub(crate) struct Block {
    attention_norm: Option<Norm>,
    attention: Attention,
    attended_norm: Option<Norm>,
    feed_forward_norm: Option<Norm>,
    feed_forward: Inner,
    fed_norm: Option<Norm>,
    parallel: bool,
    multiplier: Option<f32>,
}

impl Block {
    /// Takes the tensors under `{name}.`.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        config: &DecoderConfig,
        layer: &LayerConfig,
    ) -> Result<Self> {
        let (hidden, block) = (config.hidden, &config.block);
        let norm = |weights: &mut Weights, part: Option<&str>| {
            part.map(|part| Norm::load(weights, &format!("{name}.{part}"), hidden, config.norm)).transpose()
        };
        let (attention, inner) = (format!("{name}.self_attn"), format!("{name}.mlp"));
        let feed_forward = match &config.experts {
            Some(experts) if layer.sparse => Inner::Sparse(Experts::load(weights, &inner, hidden, experts)?),
            _ => Inner::Dense(FeedForward::load(weights, &inner, hidden, &config.feed_forward)?),
        };
        Ok(Self {
            attention_norm: norm(weights, block.attention_norm)?,
            attention: Attention::load(weights, &attention, hidden, &config.attention, layer.window)?,
            attended_norm: norm(weights, block.attended_norm)?,
            feed_forward_norm: norm(weights, block.feed_forward_norm)?,
            feed_forward,
            fed_norm: norm(weights, block.fed_norm)?,
            parallel: block.parallel,
            multiplier: block.multiplier,
        })
    }

    /// `[R, hidden]` to the same shape; `turn` is what queries and keys turn by, `caches` holds this layer's cache of each
    /// sequence.
    pub(crate) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        turn: Option<&Turn>,
        caches: &mut [&mut LayerCache],
    ) -> Result<Array> {
        let normed = normalised(self.attention_norm.as_ref(), input)?;
        let attended = self.attention.forward(&normed, batch, turn, caches)?;
        let middle = self.added(input, &attended, self.attended_norm.as_ref())?;
        let fed = if self.parallel {
            self.feed(&normed, batch)?
        } else {
            self.feed(&normalised(self.feed_forward_norm.as_ref(), &middle)?, batch)?
        };
        self.added(&middle, &fed, self.fed_norm.as_ref())
    }

    fn feed(&self, input: &Array, batch: &Batch) -> Result<Array> {
        match &self.feed_forward {
            Inner::Dense(dense) => dense.forward(input),
            Inner::Sparse(experts) => experts.forward(input, *batch.layout() == Layout::OneRun),
        }
    }

    /// `stream` with `part` added, after its norm and times the multiplier.
    fn added(&self, stream: &Array, part: &Array, norm: Option<&Norm>) -> Result<Array> {
        let part = normalised(norm, part)?;
        Ok(match self.multiplier {
            Some(multiplier) => add(stream, multiply(&part, scalar_like(multiplier, &part)?)?)?,
            None => add(stream, part)?,
        })
    }
}

fn normalised(norm: Option<&Norm>, input: &Array) -> Result<Array> {
    norm.map_or_else(|| Ok(input.clone()), |norm| norm.forward(input))
}
