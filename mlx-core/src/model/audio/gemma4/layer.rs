//! A conformer layer: half a feed-forward block, attention, a gated convolution, and another half of a feed-forward block.

use mlx_rs::ops::{add, maximum, minimum, multiply, sigmoid};
use mlx_rs::{Array, Dtype};

use super::attention::{Blocks, LocalAttention};
use super::config::AudioConfig;
use crate::array::{scalar_like, split_axis};
use crate::error::Result;
use crate::model::activation::Activated;
use crate::model::causal_conv::CausalConv;
use crate::model::clipped_linear::ClippedLinear;
use crate::model::norm::Norm;
use crate::weights::Weights;

pub(super) struct ConformerLayer {
    feed_forward1: FeedForward,
    feed_forward2: FeedForward,
    attention: LocalAttention,
    convolution: GatedConvolution,
    norm_pre_attn: Norm,
    norm_post_attn: Norm,
    norm_out: Norm,
    limit: f32,
}

impl ConformerLayer {
    /// Loads a layer's tensors under `{name}.`.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &AudioConfig) -> Result<Self> {
        let feed_forward1 = FeedForward::load(weights, &format!("{name}.feed_forward1"), config)?;
        let feed_forward2 = FeedForward::load(weights, &format!("{name}.feed_forward2"), config)?;
        let attention = LocalAttention::load(weights, &format!("{name}.self_attn"), config)?;
        let convolution = GatedConvolution::load(weights, &format!("{name}.lconv1d"), config)?;
        let mut norm =
            |part: &str| Norm::load(weights, &format!("{name}.{part}"), config.hidden_size, config.norm);
        let [norm_pre_attn, norm_post_attn, norm_out] =
            ["norm_pre_attn", "norm_post_attn", "norm_out"].map(&mut norm);
        Ok(Self {
            feed_forward1,
            feed_forward2,
            attention,
            convolution,
            norm_pre_attn: norm_pre_attn?,
            norm_post_attn: norm_post_attn?,
            norm_out: norm_out?,
            limit: config.gradient_clipping,
        })
    }

    /// Maps `[rows, hidden]` to the same shape.
    pub(super) fn forward(&self, input: &Array, blocks: &Blocks) -> Result<Array> {
        let hidden = self.feed_forward1.forward(input)?;
        let normed = self.norm_pre_attn.forward(&clamped(&hidden, self.limit)?)?;
        let mixed = clamped(&self.attention.forward(&normed, blocks)?, self.limit)?;
        let hidden = add(&hidden, self.norm_post_attn.forward(&mixed)?)?;
        let hidden = self.feed_forward2.forward(&self.convolution.forward(&hidden)?)?;
        self.norm_out.forward(&clamped(&hidden, self.limit)?)
    }
}

/// A feed-forward block between two norms. Its output is scaled before it is added to the input.
struct FeedForward {
    pre_layer_norm: Norm,
    up: ClippedLinear,
    down: ClippedLinear,
    post_layer_norm: Norm,
    scale: f32,
    limit: f32,
}

impl FeedForward {
    fn load(weights: &mut Weights, name: &str, config: &AudioConfig) -> Result<Self> {
        let (hidden, clipped) = (config.hidden_size, config.use_clipped_linears);
        let mut linear = |part: &str, outputs: usize, inputs: usize| {
            ClippedLinear::load(weights, &format!("{name}.{part}"), outputs, inputs, clipped)
        };
        let (up, down) =
            (linear("ffw_layer_1", 4 * hidden, hidden)?, linear("ffw_layer_2", hidden, 4 * hidden)?);
        let mut norm = |part: &str| Norm::load(weights, &format!("{name}.{part}"), hidden, config.norm);
        Ok(Self {
            pre_layer_norm: norm("pre_layer_norm")?,
            up,
            down,
            post_layer_norm: norm("post_layer_norm")?,
            scale: config.residual_weight,
            limit: config.gradient_clipping,
        })
    }

    /// Returns the input plus the output of the block.
    fn forward(&self, input: &Array) -> Result<Array> {
        let normed = self.pre_layer_norm.forward(&clamped(input, self.limit)?)?;
        let wide = Activated::Silu.forward(&self.up.forward(&normed)?)?;
        let narrow = clamped(&self.down.forward(&wide)?, self.limit)?;
        let output = self.post_layer_norm.forward(&narrow)?;
        Ok(add(input, multiply(&output, scalar_like(self.scale, &output)?)?)?)
    }
}

/// A convolution of each channel over the rows before, between two projections. Half of the first projection gates the other half.
struct GatedConvolution {
    pre_layer_norm: Norm,
    start: ClippedLinear,
    convolution: CausalConv,
    conv_norm: Norm,
    end: ClippedLinear,
    limit: f32,
}

impl GatedConvolution {
    fn load(weights: &mut Weights, name: &str, config: &AudioConfig) -> Result<Self> {
        let (hidden, clipped) = (config.hidden_size, config.use_clipped_linears);
        let mut linear = |part: &str, outputs: usize| {
            ClippedLinear::load(weights, &format!("{name}.{part}"), outputs, hidden, clipped)
        };
        let (start, end) = (linear("linear_start", 2 * hidden)?, linear("linear_end", hidden)?);
        let mut norm = |part: &str| Norm::load(weights, &format!("{name}.{part}"), hidden, config.norm);
        let (pre_layer_norm, conv_norm) = (norm("pre_layer_norm")?, norm("conv_norm")?);
        let name = format!("{name}.depthwise_conv1d");
        let convolution = CausalConv::load(weights, &name, hidden, config.conv_kernel_size, false)?;
        Ok(Self { pre_layer_norm, start, convolution, conv_norm, end, limit: config.gradient_clipping })
    }

    /// Returns the input plus the output of the block.
    fn forward(&self, input: &Array) -> Result<Array> {
        let both = self.start.forward(&self.pre_layer_norm.forward(input)?)?;
        let (values, gate) = split_axis(&both, 1, input.dim(1))?;
        let gated = multiply(values, sigmoid(gate)?)?;
        let (mixed, _) = self.convolution.forward(&gated, &self.convolution.nothing(&gated)?)?;
        let mixed = clamped(&mixed.as_dtype(input.dtype())?, self.limit)?;
        let active = Activated::Silu.forward(&self.conv_norm.forward(&mixed)?)?;
        Ok(add(input, self.end.forward(&active)?)?)
    }
}

/// Returns the rows with numbers from `-limit` to `limit`, or within the range of f16 if that is narrower.
fn clamped(rows: &Array, limit: f32) -> Result<Array> {
    const LARGEST_F16: f32 = 65_504.0;
    let limit = if rows.dtype() == Dtype::Float16 { limit.min(LARGEST_F16) } else { limit };
    Ok(minimum(maximum(rows, scalar_like(-limit, rows)?)?, scalar_like(limit, rows)?)?)
}
