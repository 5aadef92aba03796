//! The part of a layer that lets the rows of a sequence see each other.
//!
//! A layer kind is a variant of [`MixerKind`] that `LayerConfig` names, a variant of [`Mixer`] with a file of its own, and, where it
//! keeps something else than keys and values, a kind of `LayerState`. Planned: `Latent` (multi-head latent attention, keys
//! and values in one compressed vector), `Recurrent` (gated delta rule and state-space layers, a state of fixed size), `ShortConv`
//! (a convolution over the last few rows).

use mlx_rs::Array;

use super::attention::{Attention, AttentionConfig};
use super::batch::Batch;
use super::rope::Rotary;
use crate::cache::LayerState;
use crate::error::Result;
use crate::weights::Weights;

/// The kind of a layer's mixer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MixerKind {
    /// Softmax attention over keys and values.
    #[default]
    Attention,
}

/// A layer's mixer with its weights.
pub(super) enum Mixer {
    Attention(Attention),
}

impl Mixer {
    /// Takes the tensors under `{name}.` that a mixer of this kind needs.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: &AttentionConfig,
        (kind, sliding_window): (MixerKind, Option<usize>),
    ) -> Result<Self> {
        match kind {
            MixerKind::Attention => {
                let name = format!("{name}.self_attn");
                Attention::load(weights, &name, hidden, config, sliding_window).map(Self::Attention)
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
        }
    }
}
