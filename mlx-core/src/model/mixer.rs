//! Mixers: the part of a layer that combines the rows of a sequence.
//!
//! To add a mixer, add a variant to [`MixerKind`], which `LayerConfig` names, and a variant to [`Mixer`] with a separate file. A state that
//! does not consist of keys and values also needs a kind of `LayerState`.

use mlx_rs::Array;

use super::attention::{Attention, AttentionConfig};
use super::attention_beside_mamba2::{AttentionBesideMamba2, BesideMamba2Config};
use super::batch::Batch;
use super::gated_delta::{GatedDelta, GatedDeltaConfig};
use super::kimi_delta::{KimiDelta, KimiDeltaConfig};
use super::latent_attention::{LatentAttention, LatentConfig};
use super::mamba2::{Mamba2, Mamba2Config};
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
    /// The gated delta rule: a state of constant size that decays and is corrected row by row.
    GatedDelta(GatedDeltaConfig),
    /// The gated delta rule with a decay for each dimension of keys.
    KimiDelta(KimiDeltaConfig),
    /// Mamba-2: a state of constant size with a decay that depends on each row.
    Mamba2(Mamba2Config),
    /// Softmax attention and Mamba-2 in parallel; their outputs are added.
    BesideMamba2(BesideMamba2Config),
    /// A layer that has only a feed-forward block.
    None,
}

impl MixerKind {
    /// Returns the empty states of a layer of this kind. If it attends, its rows see `sliding_window` positions.
    pub(crate) fn new_states(self, sliding_window: Option<usize>) -> Vec<LayerState> {
        match self {
            Self::Attention => vec![LayerState::new(sliding_window)],
            Self::Latent(config) => vec![LayerState::latent(config.kv_lora_rank)],
            Self::ShortConv(_) | Self::GatedDelta(_) | Self::KimiDelta(_) | Self::Mamba2(_) => {
                vec![LayerState::recurrent()]
            }
            Self::BesideMamba2(_) => vec![LayerState::new(sliding_window), LayerState::recurrent()],
            Self::None => Vec::new(),
        }
    }

    /// Returns true if it attends to keys and values.
    pub(super) fn attends(self) -> bool {
        matches!(self, Self::Attention | Self::BesideMamba2(_))
    }

    /// Returns the config of its Mamba-2 part, if it has one.
    pub(super) fn mamba2(self) -> Option<Mamba2Config> {
        match self {
            Self::Mamba2(mamba) => Some(mamba),
            Self::BesideMamba2(both) => Some(both.mamba),
            _ => None,
        }
    }

    /// Returns the bytes of the layer's state that do not depend on the length, with activations of `size` bytes.
    pub(super) fn fixed_bytes(self, size: usize) -> usize {
        match self {
            Self::Attention | Self::Latent(_) | Self::None => 0,
            Self::ShortConv(config) => config.state_bytes(size),
            Self::GatedDelta(config) => config.state_bytes(size),
            Self::KimiDelta(config) => config.state_bytes(size),
            Self::Mamba2(config) => config.state_bytes(size),
            Self::BesideMamba2(config) => config.mamba.state_bytes(size),
        }
    }
}

/// The config that a mixer is loaded with.
pub(super) struct MixerConfig<'a> {
    /// The kind.
    pub(super) kind: MixerKind,
    /// The shape of attention, if that is the kind.
    pub(super) attention: &'a AttentionConfig,
    /// The number of positions that a row sees, itself included; all of them if `None`.
    pub(super) sliding_window: Option<usize>,
    /// True if it attends to the keys and values of another layer.
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
    KimiDelta(Box<KimiDelta>),
    Mamba2(Box<Mamba2>),
    BesideMamba2(Box<AttentionBesideMamba2>),
}

impl Mixer {
    /// Loads the tensors under `{name}.` that such a mixer needs.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &MixerConfig) -> Result<Option<Self>> {
        let MixerConfig { kind, attention, sliding_window, borrows, hidden, eps } = *config;
        let mixer = match kind {
            MixerKind::None => return Ok(None),
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
            MixerKind::KimiDelta(delta) => {
                let name = format!("{name}.self_attn");
                Ok(Self::KimiDelta(Box::new(KimiDelta::load(weights, &name, hidden, delta, eps)?)))
            }
            MixerKind::Mamba2(mamba) => {
                let name = format!("{name}.mamba");
                Ok(Self::Mamba2(Box::new(Mamba2::load(weights, &name, hidden, mamba, eps)?)))
            }
            MixerKind::BesideMamba2(both) => {
                let load = AttentionBesideMamba2::load(weights, name, hidden, (attention, both), eps);
                Ok(Self::BesideMamba2(Box::new(load?)))
            }
        };
        mixer.map(Some)
    }

    /// Maps `[T, hidden]` to the same shape. Extends the layer's states of each sequence.
    pub(super) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        rotary: Option<&Rotary>,
        states: &mut [&mut [LayerState]],
    ) -> Result<Array> {
        let [mut first, mut second] = split_states(states);
        match self {
            Self::Attention(attention) => attention.forward(input, batch, rotary, &mut first),
            Self::Latent(latent) => latent.forward(input, batch, rotary, &mut first),
            Self::ShortConv(conv) => conv.forward(input, batch, &mut first),
            Self::GatedDelta(delta) => delta.forward(input, batch, &mut first),
            Self::KimiDelta(delta) => delta.forward(input, batch, &mut first),
            Self::Mamba2(mamba) => mamba.forward(input, batch, &mut first),
            Self::BesideMamba2(both) => both.forward(input, batch, rotary, [&mut first, &mut second]),
        }
    }
}

/// Returns the first state of the layer for each sequence, and the second one if the layer has two.
fn split_states<'a>(states: &'a mut [&mut [LayerState]]) -> [Vec<&'a mut LayerState>; 2] {
    let mut apart = [Vec::with_capacity(states.len()), Vec::new()];
    for of_layer in states {
        for (state, list) in of_layer.iter_mut().zip(&mut apart) {
            list.push(state);
        }
    }
    apart
}
