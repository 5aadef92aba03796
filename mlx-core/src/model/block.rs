//! One decoder layer: a mixer and a feed-forward block, each between norms and with a residual connection.

use mlx_rs::Array;
use mlx_rs::ops::{add, multiply};

use super::altup::AltUp;
use super::batch::Batch;
use super::config::{DecoderConfig, LayerConfig};
use super::dense_and_experts::DenseAndExperts;
use super::feed_forward::{FeedForward, FeedForwardConfig};
use super::mixer::{Mixer, MixerConfig, MixerKind};
use super::moe::Experts;
use super::norm::{Norm, NormConfig};
use super::per_layer_input::PerLayerInput;
use super::rope::Rotary;
use crate::array::scalar_like;
use crate::cache::LayerState;
use crate::error::Result;
use crate::weights::Weights;

/// The feed-forward block of a layer, which computes each row independently.
enum FeedForwardKind {
    /// A layer that has only a mixer.
    None,
    Dense(FeedForward),
    Sparse(Box<Experts>),
    Both(Box<DenseAndExperts>),
}

/// A transformer layer.
pub(crate) struct Block {
    input_norm: Option<Norm>,
    mixer: Option<Mixer>,
    post_attention_norm: Option<Norm>,
    pre_feedforward_norm: Option<Norm>,
    feed_forward: FeedForwardKind,
    post_feedforward_norm: Option<Norm>,
    parallel_residual: bool,
    residual_multiplier: Option<f32>,
    per_layer_input: Option<PerLayerInput>,
    /// `[1]`
    layer_scalar: Option<Array>,
    altup: Option<AltUp>,
}

impl Block {
    /// Loads the tensors under `{name}.`.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        config: &DecoderConfig,
        layer: &LayerConfig,
    ) -> Result<Self> {
        let (hidden, block) = (config.hidden_size, &config.block);
        let norm_by = |weights: &mut Weights, part: Option<&str>, norm: NormConfig| {
            part.map(|part| Norm::load(weights, &format!("{name}.{part}"), hidden, norm)).transpose()
        };
        let norm = |weights: &mut Weights, part: Option<&str>| norm_by(weights, part, config.norm);
        let after = NormConfig { eps: block.post_norm_eps.unwrap_or(config.norm.eps), ..config.norm };
        let per_layer_input = config.per_layer_input;
        let per_layer_input =
            per_layer_input.map(|config| PerLayerInput::load(weights, name, hidden, config));
        let layer_scalar = block.layer_scalar.then(|| weights.take(&format!("{name}.layer_scalar"), &[1]));
        let mixer = MixerConfig {
            kind: layer.mixer,
            attention: layer.attention.as_deref().unwrap_or(&config.attention),
            sliding_window: layer.sliding_window,
            borrows: layer.kv_source.is_some(),
            hidden,
            eps: config.norm.eps,
        };
        let attends = layer.mixer != MixerKind::None;
        let before = |part: Option<&'static str>, is_there: bool| part.filter(|_| is_there);
        Ok(Self {
            input_norm: norm(weights, before(block.input_norm, attends))?,
            mixer: Mixer::load(weights, name, &mixer)?,
            post_attention_norm: norm_by(weights, before(block.post_attention_norm, attends), after)?,
            pre_feedforward_norm: norm(weights, before(block.pre_feedforward_norm, layer.feeds_forward))?,
            feed_forward: FeedForwardKind::load(weights, name, config, layer)?,
            post_feedforward_norm: norm_by(
                weights,
                before(block.post_feedforward_norm, layer.feeds_forward),
                after,
            )?,
            parallel_residual: block.parallel_residual,
            residual_multiplier: block.residual_multiplier,
            per_layer_input: per_layer_input.transpose()?,
            layer_scalar: layer_scalar.transpose()?,
            altup: config.altup.map(|altup| AltUp::load(weights, name, hidden, altup)).transpose()?,
        })
    }

    /// Maps `[T, hidden]`, or as many streams of it, to the same shape. Queries and keys rotate by `rotary`. `tokens` has the per-layer inputs of the tokens. `states`
    /// has the states of each sequence that this layer extends or borrows.
    pub(crate) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        rotary: Option<&Rotary>,
        tokens: Option<&Array>,
        states: &mut [&mut [LayerState]],
    ) -> Result<Array> {
        let streams = self.altup.as_ref().map(|altup| altup.predict(input)).transpose()?;
        let input = streams.as_ref().map_or(input, |streams| &streams.active);
        let normed = normalized(self.input_norm.as_ref(), input)?;
        let mut middle = match &self.mixer {
            None => input.clone(),
            Some(mixer) => {
                let attended = mixer.forward(&normed, batch, rotary, states)?;
                self.added(input, &attended, self.post_attention_norm.as_ref())?
            }
        };
        if let Some(altup) = &self.altup {
            middle = altup.augmented(&normed, &middle)?;
        }
        let mut output = self.fed(input, &normed, &middle, batch)?;
        if let (Some(altup), Some(streams)) = (&self.altup, &streams) {
            let (corrected, active) = altup.correct(streams, &output)?;
            let of_token = self.per_layer_input.as_ref().zip(tokens);
            let of_token = of_token.map(|(layer, tokens)| layer.of_token(&active, tokens)).transpose()?;
            return altup.joined(&corrected, of_token.as_ref());
        }
        if let (Some(layer), Some(tokens)) = (&self.per_layer_input, tokens) {
            output = layer.forward(&output, tokens)?;
        }
        self.layer_scalar.as_ref().map_or(Ok(output.clone()), |scalar| Ok(multiply(&output, scalar)?))
    }

    /// Adds the output of the feed-forward block to `middle`. The block reads `middle`. In parallel with the mixer, it reads `normed`, the
    /// input of the mixer, or a separate norm of `input`.
    fn fed(&self, input: &Array, normed: &Array, middle: &Array, batch: &Batch) -> Result<Array> {
        if matches!(self.feed_forward, FeedForwardKind::None) {
            return Ok(middle.clone());
        }
        let read = match (self.parallel_residual, &self.pre_feedforward_norm) {
            (true, None) => normed.clone(),
            (true, Some(norm)) => norm.forward(input)?,
            (false, norm) => normalized(norm.as_ref(), middle)?,
        };
        let fed = self.feed_forward.forward(&read, middle, batch)?;
        self.added(middle, &fed, self.post_feedforward_norm.as_ref())
    }

    /// Adds `part` to `stream`, after its norm and times `residual_multiplier`.
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

impl FeedForwardKind {
    /// Loads the tensors of the feed-forward block of layer `name`.
    fn load(weights: &mut Weights, name: &str, config: &DecoderConfig, layer: &LayerConfig) -> Result<Self> {
        if !layer.feeds_forward {
            return Ok(Self::None);
        }
        let (hidden, inner) = (config.hidden_size, format!("{name}.mlp"));
        let intermediate_size = layer.intermediate_size.unwrap_or(config.feed_forward.intermediate_size);
        let activation_sparsity = layer.activation_sparsity;
        let dense =
            FeedForwardConfig { intermediate_size, activation_sparsity, ..config.feed_forward.clone() };
        Ok(match config.experts.as_ref().filter(|_| layer.is_moe) {
            Some(experts) if experts.beside_dense => {
                let load = DenseAndExperts::load(weights, name, hidden, (&dense, experts), config.norm);
                Self::Both(Box::new(load?))
            }
            Some(experts) => Self::Sparse(Box::new(Experts::load(weights, &inner, hidden, experts)?)),
            None => Self::Dense(FeedForward::load(weights, &inner, hidden, &dense)?),
        })
    }

    /// Maps `[T, hidden]` to the same shape. `normed` is the norm of `stream`.
    fn forward(&self, normed: &Array, stream: &Array, batch: &Batch) -> Result<Array> {
        match self {
            Self::None => Ok(stream.clone()),
            Self::Dense(dense) => dense.forward(normed),
            Self::Sparse(experts) => experts.forward(normed, !batch.is_decode()),
            Self::Both(both) => both.forward(normed, stream, !batch.is_decode()),
        }
    }
}

fn normalized(norm: Option<&Norm>, input: &Array) -> Result<Array> {
    norm.map_or_else(|| Ok(input.clone()), |norm| norm.forward(input))
}
