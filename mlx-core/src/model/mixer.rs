//! The part of a layer that lets the rows of a sequence see each other.
//!
//! A layer kind is a variant of [`MixerKind`] that `LayerConfig` names, a variant of [`Mixer`] with a file of its own, and, where it
//! keeps something else than keys and values, a kind of `LayerState`.

use mlx_rs::Array;

use super::attention::{Attention, AttentionConfig};
use super::batch::Batch;
use super::gated_delta::{GatedDelta, GatedDeltaConfig};
use super::latent_attention::{LatentAttention, LatentConfig};
use super::rope::Rotary;
use super::short_conv::{ShortConv, ShortConvConfig};
use crate::cache::LayerState;
use crate::error::Result;
use crate::weights::Weights;

/// The kind of a layer's mixer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum MixerKind {
    /// Softmax attention over keys and values.
    #[default]
    Attention,
    /// Softmax attention over one latent of every position.
    Latent(LatentConfig),
    /// A gated convolution over the last few rows.
    ShortConv(ShortConvConfig),
    /// The gated delta rule: a state of constant size that forgets and is corrected row by row.
    GatedDelta(GatedDeltaConfig),
}

impl MixerKind {
    /// An empty state of a layer of this kind, whose rows see `sliding_window` positions if it attends.
    pub(super) fn new_state(self, sliding_window: Option<usize>) -> LayerState {
        match self {
            Self::Attention => LayerState::new(sliding_window),
            Self::Latent(config) => LayerState::latent(config.kv_lora_rank),
            Self::ShortConv(_) | Self::GatedDelta(_) => LayerState::recurrent(),
        }
    }

    /// Bytes of the state of such a layer at any length, with activations of `size` bytes.
    pub(super) fn fixed_bytes(self, hidden: usize, size: usize) -> usize {
        match self {
            Self::Attention | Self::Latent(_) => 0,
            Self::ShortConv(config) => config.state_bytes(hidden, size),
            Self::GatedDelta(config) => config.state_bytes(size),
        }
    }
}

/// What a mixer is loaded by.
pub(super) struct MixerConfig<'a> {
    /// The kind.
    pub(super) kind: MixerKind,
    /// The shape of attention, if that is the kind.
    pub(super) attention: &'a AttentionConfig,
    /// How many positions a row sees, itself included; all of them if `None`.
    pub(super) sliding_window: Option<usize>,
    /// Whether it attends to the keys and values of another layer.
    pub(super) borrows: bool,
    /// The width of the residual stream.
    pub(super) hidden: usize,
    /// The epsilon of norms.
    pub(super) eps: f32,
}

/// A layer's mixer with its weights.
pub(super) enum Mixer {
    Attention(Box<Attention>),
    Latent(Box<LatentAttention>),
    ShortConv(ShortConv),
    GatedDelta(GatedDelta),
}

impl Mixer {
    /// Takes the tensors under `{name}.` that such a mixer needs.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &MixerConfig) -> Result<Self> {
        let MixerConfig { kind, attention, sliding_window, borrows, hidden, eps } = *config;
        match kind {
            MixerKind::Attention => {
                let name = format!("{name}.self_attn");
                Attention::load(weights, &name, hidden, attention, sliding_window, borrows)
                    .map(|attention| Self::Attention(Box::new(attention)))
            }
            MixerKind::Latent(latent) => {
                let name = format!("{name}.self_attn");
                Ok(Self::Latent(Box::new(LatentAttention::load(weights, &name, hidden, latent)?)))
            }
            MixerKind::ShortConv(conv) => {
                ShortConv::load(weights, &format!("{name}.conv"), hidden, conv).map(Self::ShortConv)
            }
            MixerKind::GatedDelta(delta) => {
                let name = format!("{name}.linear_attn");
                GatedDelta::load(weights, &name, hidden, delta, eps).map(Self::GatedDelta)
            }
        }
    }

    /// `[T, hidden]` to the same shape. Extends the layer's state of each sequence.
    pub(super) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        rotary: Option<&Rotary>,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        match self {
            Self::Attention(attention) => attention.forward(input, batch, rotary, states),
            Self::Latent(latent) => latent.forward(input, batch, rotary, states),
            Self::ShortConv(conv) => conv.forward(input, batch, states),
            Self::GatedDelta(delta) => delta.forward(input, batch, states),
        }
    }
}
