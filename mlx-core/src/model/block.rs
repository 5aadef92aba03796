//! One decoder layer: a mixer and a feed-forward block, each between norms and with a residual connection.

use mlx_rs::Array;
use mlx_rs::ops::{add, multiply};

use super::batch::Batch;
use super::config::{DecoderConfig, LayerConfig};
use super::feed_forward::FeedForward;
use super::mixer::{Mixer, MixerConfig};
use super::moe::Experts;
use super::norm::Norm;
use super::rope::Rotary;
use crate::array::scalar_like;
use crate::cache::LayerState;
use crate::error::Result;
use crate::weights::Weights;

/// The part of a layer that computes each row alone.
enum Inner {
    Dense(FeedForward),
    Sparse(Box<Experts>),
}

/// A transformer layer.
pub(crate) struct Block {
    input_norm: Option<Norm>,
    mixer: Mixer,
    post_attention_norm: Option<Norm>,
    pre_feedforward_norm: Option<Norm>,
    feed_forward: Inner,
    post_feedforward_norm: Option<Norm>,
    parallel_residual: bool,
    residual_multiplier: Option<f32>,
}

impl Block {
    /// Takes the tensors under `{name}.`.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        config: &DecoderConfig,
        layer: &LayerConfig,
    ) -> Result<Self> {
        let (hidden, block) = (config.hidden_size, &config.block);
        let norm = |weights: &mut Weights, part: Option<&str>| {
            part.map(|part| Norm::load(weights, &format!("{name}.{part}"), hidden, config.norm)).transpose()
        };
        let inner = format!("{name}.mlp");
        let feed_forward = match &config.experts {
            Some(experts) if layer.is_moe => {
                Inner::Sparse(Box::new(Experts::load(weights, &inner, hidden, experts)?))
            }
            _ => Inner::Dense(FeedForward::load(weights, &inner, hidden, &config.feed_forward)?),
        };
        let mixer = MixerConfig {
            kind: layer.mixer,
            attention: layer.attention.as_deref().unwrap_or(&config.attention),
            sliding_window: layer.sliding_window,
            hidden,
            eps: config.norm.eps,
        };
        Ok(Self {
            input_norm: norm(weights, block.input_norm)?,
            mixer: Mixer::load(weights, name, &mixer)?,
            post_attention_norm: norm(weights, block.post_attention_norm)?,
            pre_feedforward_norm: norm(weights, block.pre_feedforward_norm)?,
            feed_forward,
            post_feedforward_norm: norm(weights, block.post_feedforward_norm)?,
            parallel_residual: block.parallel_residual,
            residual_multiplier: block.residual_multiplier,
        })
    }

    /// `[T, hidden]` to the same shape; `rotary` is what queries and keys rotate by, `states` holds this layer's state of each
    /// sequence.
    pub(crate) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        rotary: Option<&Rotary>,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        let normed = normalized(self.input_norm.as_ref(), input)?;
        let attended = self.mixer.forward(&normed, batch, rotary, states)?;
        let middle = self.added(input, &attended, self.post_attention_norm.as_ref())?;
        let fed = if self.parallel_residual {
            self.feed(&normed, batch)?
        } else {
            self.feed(&normalized(self.pre_feedforward_norm.as_ref(), &middle)?, batch)?
        };
        self.added(&middle, &fed, self.post_feedforward_norm.as_ref())
    }

    fn feed(&self, input: &Array, batch: &Batch) -> Result<Array> {
        match &self.feed_forward {
            Inner::Dense(dense) => dense.forward(input),
            Inner::Sparse(experts) => experts.forward(input, !batch.is_decode()),
        }
    }

    /// `stream` with `part` added, after its norm and times the residual_multiplier.
    fn added(&self, stream: &Array, part: &Array, norm: Option<&Norm>) -> Result<Array> {
        let part = normalized(norm, part)?;
        Ok(match self.residual_multiplier {
            Some(residual_multiplier) => {
                add(stream, multiply(&part, scalar_like(residual_multiplier, &part)?)?)?
            }
            None => add(stream, part)?,
        })
    }
}

fn normalized(norm: Option<&Norm>, input: &Array) -> Result<Array> {
    norm.map_or_else(|| Ok(input.clone()), |norm| norm.forward(input))
}
