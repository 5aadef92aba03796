//! The part of a model that one machine has: some layers, and possibly the embedding, the last norm and the head.

use std::ops::Range;

use super::config::{DecoderConfig, LayerConfig};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// The part of a model that one machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelPart {
    /// Its layers, in full or as a shard of each.
    pub(crate) layers: Range<usize>,
    /// True if it has the embedding, the last norm and the head.
    pub(crate) has_embedding_and_head: bool,
}

impl DecoderConfig {
    /// Returns the decoder that has only these layers. No layer in the range may borrow from one outside.
    pub(crate) fn of_layers(&self, range: &Range<usize>) -> Self {
        let mut layers = self.layers[range.clone()].to_vec();
        for layer in &mut layers {
            layer.kv_source = layer.kv_source.map(|source| source - range.start);
        }
        Self { layers, ..self.clone() }
    }

    /// Rejects a model that cannot be split across machines.
    pub(super) fn expect_divisible(&self, family: &str) -> Result<()> {
        if self.per_layer_input.is_some() {
            let message = format!(
                "cannot be several for {family}: each of its layers reads the token ids, which are not sent to other ranks"
            );
            return Err(Error::option("ranks", message));
        }
        Ok(())
    }

    /// Returns true if the layers of a machine may begin with `first`: no layer from there on borrows from an earlier one.
    pub(crate) fn may_begin_at(&self, first: usize) -> bool {
        self.layers[first..].iter().all(|layer| layer.kv_source.is_none_or(|source| source >= first))
    }

    /// Returns true if some of these layers have a state.
    pub(crate) fn extend_states(&self, range: &Range<usize>) -> bool {
        self.layers[range.clone()].iter().any(LayerConfig::extends)
    }
}

/// The bytes of a model on the device, by part.
pub(crate) struct LayerBytes {
    /// Bytes of the embedding, the last norm and the head.
    pub(crate) ends: u64,
    /// Bytes of each layer.
    pub(crate) layers: Vec<u64>,
    /// Bytes of a float in the model's type.
    pub(crate) float: u64,
}

impl LayerBytes {
    /// Sums up the prepared weights of a model with `layers` layers.
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

/// Returns a function from the name of a tensor in the files to its layer. It returns `None` for the embedding, the last norm and the
/// head.
fn layers_by_name(weights: &Weights, layers: usize) -> impl Fn(&str) -> Option<usize> + use<> {
    let prefix = weights.file_name_of("model.layers.");
    move |name| {
        let index = name.strip_prefix(&prefix)?.split('.').next()?;
        index.parse().ok().filter(|index| *index < layers)
    }
}

/// Skips the tensors of all other parts, and an adapter's changes of them.
pub(super) fn keep_part(weights: &mut Weights, part: &ModelPart, layers: usize) {
    let layer_of = layers_by_name(weights, layers);
    let is_other = |layer: Option<usize>| match layer {
        Some(layer) => !part.layers.contains(&layer),
        None => !part.has_embedding_and_head,
    };
    weights.skip_all(|name| is_other(layer_of(name)));
    weights.skip_changes(is_other);
    weights.recount();
}
