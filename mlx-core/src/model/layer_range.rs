//! What one of several machines has of a model: some of its layers, and perhaps what is around all of them.

use std::ops::Range;

use super::config::{DecoderConfig, LayerConfig};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// What one of several machines has of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelPart {
    /// Its layers, or those of which it has a part.
    pub(crate) layers: Range<usize>,
    /// Whether it has the embedding, the last norm and the head.
    pub(crate) has_ends: bool,
}

impl DecoderConfig {
    /// The decoder of these layers alone. No layer in the range may borrow from one outside.
    pub(crate) fn of_layers(&self, range: &Range<usize>) -> Self {
        let mut layers = self.layers[range.clone()].to_vec();
        for layer in &mut layers {
            layer.kv_source = layer.kv_source.map(|source| source - range.start);
        }
        Self { layers, ..self.clone() }
    }

    /// Refuses a model whose layers cannot be on several machines.
    pub(super) fn expect_divisible(&self, family: &str) -> Result<()> {
        if self.per_layer_input.is_some() {
            let message = format!(
                "cannot be several for {family}: each of its layers reads the tokens themselves, and they are sent to no other machine"
            );
            return Err(Error::option("ranks", message));
        }
        Ok(())
    }

    /// Whether a machine's layers may begin with this one: none behind it borrows from one before it.
    pub(crate) fn may_begin_at(&self, first: usize) -> bool {
        self.layers[first..].iter().all(|layer| layer.kv_source.is_none_or(|source| source >= first))
    }

    /// Whether some of these layers have a state.
    pub(crate) fn extend_states(&self, range: &Range<usize>) -> bool {
        self.layers[range.clone()].iter().any(LayerConfig::extends)
    }
}

/// Bytes on the device of the parts of a model.
pub(crate) struct LayerBytes {
    /// Of the embedding, the last norm and the head.
    pub(crate) ends: u64,
    /// Of each layer.
    pub(crate) layers: Vec<u64>,
    /// Of a float.
    pub(crate) float: u64,
}

impl LayerBytes {
    /// Of prepared weights of a model with so many layers.
    pub(super) fn of(weights: &Weights, layers: usize) -> Self {
        let float = weights.survey().0.float_bytes();
        let (layer_of, mut sum) =
            (layers_by_name(weights, layers), Self { ends: 0, layers: vec![0; layers], float });
        for (name, bytes) in weights.sizes() {
            *layer_of(name).map_or(&mut sum.ends, |layer| &mut sum.layers[layer]) += bytes;
        }
        sum
    }
}

/// The layer that a tensor belongs to, by its name in the files; `None` for the embedding, the last norm and the head.
fn layers_by_name(weights: &Weights, layers: usize) -> impl Fn(&str) -> Option<usize> + use<> {
    let prefix = weights.in_files("model.layers.");
    move |name| {
        let index = name.strip_prefix(&prefix)?.split('.').next()?;
        index.parse().ok().filter(|index| *index < layers)
    }
}

/// Drops the tensors of everything else.
pub(super) fn keep_part(weights: &mut Weights, part: &ModelPart, layers: usize) {
    let layer_of = layers_by_name(weights, layers);
    weights.skip_all(|name| match layer_of(name) {
        Some(layer) => !part.layers.contains(&layer),
        None => !part.has_ends,
    });
    weights.recount();
}
