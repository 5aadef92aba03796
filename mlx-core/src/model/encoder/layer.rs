//! A layer of an encoder: attention and a feed-forward block, each with a residual connection.

use mlx_rs::Array;
use mlx_rs::ops::add;

use super::config::EncoderConfig;
use crate::error::Result;
use crate::model::attention::{Attention, TextShape};
use crate::model::feed_forward::FeedForward;
use crate::model::norm::Norm;
use crate::model::rope::Rotary;
use crate::weights::Weights;

/// A layer with its weights.
pub(super) struct EncoderLayer {
    input_norm: Option<Norm>,
    attention: Attention,
    post_attention_norm: Option<Norm>,
    pre_feedforward_norm: Option<Norm>,
    feed_forward: FeedForward,
    post_feedforward_norm: Option<Norm>,
    norm_after_sum: bool,
}

impl EncoderLayer {
    /// Loads the tensors of layer `index`.
    pub(super) fn load(weights: &mut Weights, config: &EncoderConfig, index: usize) -> Result<Self> {
        let (stack, name) = (&config.stack, format!("model.layers.{index}"));
        let norm = |weights: &mut Weights, part: Option<&str>| {
            let load = |part| Norm::load(weights, &format!("{name}.{part}"), stack.hidden_size, stack.norm);
            part.map(load).transpose()
        };
        let first = index == 0 && !config.first_layer_is_normalized;
        let layer = &stack.layers[index];
        let attention = layer.attention.as_deref().unwrap_or(&stack.attention);
        let name_of = |part: &str| format!("{name}.{part}");
        Ok(Self {
            input_norm: norm(weights, stack.block.input_norm.filter(|_| !first))?,
            attention: Attention::load(
                weights,
                &name_of("self_attn"),
                stack.hidden_size,
                attention,
                layer.sliding_window,
                false,
            )?,
            post_attention_norm: norm(weights, stack.block.post_attention_norm)?,
            pre_feedforward_norm: norm(weights, stack.block.pre_feedforward_norm)?,
            feed_forward: FeedForward::load(
                weights,
                &name_of("mlp"),
                stack.hidden_size,
                &stack.feed_forward,
            )?,
            post_feedforward_norm: norm(weights, stack.block.post_feedforward_norm)?,
            norm_after_sum: config.norm_after_sum,
        })
    }

    /// Maps `[texts * length, hidden]` to the same shape.
    pub(super) fn forward(
        &self,
        input: &Array,
        shape: TextShape,
        rotary: Option<&Rotary>,
        mask: Option<&Array>,
    ) -> Result<Array> {
        let normed = normalized(self.input_norm.as_ref(), input)?;
        let attended = self.attention.forward_two_way(&normed, shape, rotary, mask)?;
        let middle = self.joined(input, &attended, self.post_attention_norm.as_ref())?;
        let normed = normalized(self.pre_feedforward_norm.as_ref(), &middle)?;
        let fed = self.feed_forward.forward(&normed)?;
        self.joined(&middle, &fed, self.post_feedforward_norm.as_ref())
    }

    /// Adds `part` to `stream`. The norm follows the sum or precedes it.
    fn joined(&self, stream: &Array, part: &Array, norm: Option<&Norm>) -> Result<Array> {
        if self.norm_after_sum {
            return normalized(norm, &add(stream, part)?);
        }
        Ok(add(stream, normalized(norm, part)?)?)
    }
}

fn normalized(norm: Option<&Norm>, input: &Array) -> Result<Array> {
    norm.map_or_else(|| Ok(input.clone()), |norm| norm.forward(input))
}
