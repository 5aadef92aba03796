//! The decoder, which all families share. A family is only a [`DecoderConfig`].

use std::cell::RefCell;
use std::ops::Range;

use mlx_rs::ops::add;
use mlx_rs::{Array, Dtype};

use super::batch::{Batch, Input};
use super::block::Block;
use super::config::{DecoderConfig, LayerConfig};
use super::ends::EmbeddingAndHead;
use super::layer_range::{ModelPart, keep_part};
use super::mtp::{self, MTP_HISTORY, MtpNames};
use super::pass::Pass;
use super::per_layer_input::PerLayerInputs;
use super::rope::Ropes;
use super::{Model, ModelSpec};
use crate::cache::{LayerState, SequenceState, Variant};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// A decoder-only transformer with its weights, or some layers of one.
pub(crate) struct Decoder {
    spec: ModelSpec,
    config: DecoderConfig,
    dtype: Dtype,
    /// `None` if another machine has the embedding and the head.
    ends: Option<EmbeddingAndHead>,
    ropes: Ropes,
    blocks: Vec<Block>,
    /// The indices of each layer's states in the states of a sequence. For a layer that borrows states, the indices of the borrowed ones.
    states: Vec<Range<usize>>,
}

/// The part of a checkpoint that a decoder loads.
enum Parts<'a> {
    /// All layers, the embedding and the head.
    Whole,
    /// The layers of one machine. Loading stops before a layer if there is an error in the cell.
    Some(&'a ModelPart, &'a RefCell<Option<Error>>),
    /// The MTP head, which predicts the token after the next one.
    Head(&'a MtpNames),
}

impl Decoder {
    /// Loads all tensors that `config` needs.
    pub(crate) fn load(family: &str, mut config: DecoderConfig, mut weights: Weights) -> Result<Self> {
        config.prepare(&mut weights)?;
        Self::take(family, config, weights, &Parts::Whole)
    }

    /// Loads the part of one machine, until there is an error in `end`. Sharded weights are cut.
    pub(crate) fn load_part(
        family: &str,
        mut config: DecoderConfig,
        mut weights: Weights,
        part: &ModelPart,
        end: &RefCell<Option<Error>>,
    ) -> Result<Self> {
        config.prepare(&mut weights)?;
        config.expect_divisible(family)?;
        if let Some((rank, ranks)) = weights.shard().map(|shard| (shard.rank, shard.ranks)) {
            let shared = config.for_rank(family, ranks)?;
            config.cut(&mut weights, rank, ranks)?;
            config = shared;
        }
        keep_part(&mut weights, part, config.layers.len());
        Self::take(family, config.of_layers(&part.layers), weights, &Parts::Some(part, end))
    }

    /// Loads the MTP head of these weights; `None` if they have none. The head reads [`Input::Mtp`].
    pub(crate) fn load_mtp(
        family: &str,
        mut config: DecoderConfig,
        mut weights: Weights,
    ) -> Result<Option<Self>> {
        config.prepare_with_heads(&mut weights)?;
        let Some(names) = MtpNames::find(&mut weights, &config) else { return Ok(None) };
        let Some(config) = mtp::config_of_head(&config) else { return Ok(None) };
        Self::take(family, config, weights, &Parts::Head(&names)).map(Some)
    }

    fn take(family: &str, config: DecoderConfig, mut weights: Weights, parts: &Parts) -> Result<Self> {
        let dtype = weights.dtype();
        let ends = match parts {
            Parts::Some(part, _) if !part.has_embedding_and_head => None,
            Parts::Head(names) => Some(EmbeddingAndHead::load(&mut weights, &config, Some(names))?),
            _ => Some(EmbeddingAndHead::load(&mut weights, &config, None)?),
        };
        let blocks = (config.layers.iter().enumerate())
            .map(|(index, layer)| {
                if let Parts::Some(_, end) = parts
                    && let Some(error) = end.take()
                {
                    return Err(error);
                }
                let name = match parts {
                    Parts::Whole => format!("model.layers.{index}"),
                    Parts::Some(part, _) => format!("model.layers.{}", part.layers.start + index),
                    Parts::Head(names) => names.block.clone(),
                };
                Block::load(&mut weights, &name, &config, layer)
            })
            .collect::<Result<_>>()?;
        let ropes = Ropes::new(config.layers.iter().map(|layer| layer.rope.as_ref()), weights.backend());
        let (is_adapted, backend) = (weights.is_adapted(), weights.backend());
        let mut spec = ModelSpec::new(family, &config, &weights.finish()?, backend);
        if matches!(parts, Parts::Head(_)) {
            spec.footprint = spec.footprint.with_mtp_history(config.hidden_size, MTP_HISTORY);
        }
        if is_adapted {
            spec.footprint = spec.footprint.adapted();
        }
        let states = places(&config.layers);
        Ok(Self { spec, config, dtype, ends, ropes, blocks, states })
    }

    /// Returns the embedding and the head.
    fn ends(&self) -> Result<&EmbeddingAndHead> {
        self.ends.as_ref().ok_or_else(|| {
            Error::Internal("a pass began or ended on a rank without the embedding and the head".into())
        })
    }

    /// The type of hidden states.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Continues a pass from hidden states that other layers computed, after the first `layer` layers of this decoder.
    pub(crate) fn resume(&self, batch: Batch, layer: usize) -> Result<Pass> {
        let Input::Embeddings(rows) = batch.input() else {
            return Err(Error::Internal(
                "a pass that continues after another rank has no hidden states as its input".into(),
            ));
        };
        let hidden = rows.as_dtype(self.dtype)?;
        Ok(Pass { batch, rotary: Vec::new(), per_layer_inputs: None, deepstack: Vec::new(), hidden, layer })
    }
}

/// Returns the indices of each layer's states in the states of a sequence, which are in the order of layers.
fn places(layers: &[LayerConfig]) -> Vec<Range<usize>> {
    let mut places: Vec<Range<usize>> = Vec::with_capacity(layers.len());
    let mut end = 0;
    for layer in layers {
        let own = || layer.mixer.new_states(layer.sliding_window).len();
        let place = layer.kv_source.map_or_else(|| end..end + own(), |source| places[source].clone());
        end = end.max(place.end);
        places.push(place);
    }
    places
}

impl Model for Decoder {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn new_state(&self, variant: Variant) -> SequenceState {
        let layer = |layer: &LayerConfig| layer.mixer.new_states(layer.sliding_window);
        let own = self.config.layers.iter().filter(|layer| layer.kv_source.is_none());
        SequenceState::new(own.flat_map(layer).collect(), variant)
    }

    fn begin(&self, batch: Batch) -> Result<Pass> {
        self.ends()?.begin(batch, &self.spec.family)
    }

    fn advance(&self, pass: &mut Pass, layers: usize, states: &mut [&mut SequenceState]) -> Result<()> {
        if pass.rotary.is_empty() {
            let long = pass.long_rows(states);
            let shifts: Vec<i32> = states.iter().map(|state| state.position_shift()).collect();
            pass.rotary = self.ropes.rotary(&pass.batch.shifted(&shifts)?, &long)?;
            pass.batch.promise(states.iter().map(|state| state.promised()).collect());
        }
        let mut end = pass.layer.saturating_add(layers);
        // Trailing layers without states are issued in the same call: a state with all layers issued looks like one with its pass finished.
        if end >= self.blocks.len() || !self.config.layers[end..].iter().any(LayerConfig::extends) {
            end = self.blocks.len();
        }
        for layer in pass.layer..end {
            let mut of_layer: Vec<&mut [LayerState]> =
                states.iter_mut().map(|state| state.layers_mut(self.states[layer].clone())).collect();
            let rotary = self.ropes.of_layer(&pass.rotary, layer);
            let tokens = pass.per_layer_inputs.as_ref();
            let tokens = tokens.map(|all| PerLayerInputs::of_layer(all, layer)).transpose()?;
            let block = &self.blocks[layer];
            pass.hidden = block.forward(&pass.hidden, &pass.batch, rotary, tokens.as_ref(), &mut of_layer)?;
            if let Some(rows) = pass.deepstack.get(layer) {
                pass.hidden = add(&pass.hidden, rows)?;
            }
        }
        pass.layer = end;
        Ok(())
    }

    fn shift(&self, state: &mut SequenceState, kept: usize, dropped: usize) -> Result<()> {
        state.shift(kept, dropped, |place, keys| {
            let layer = self.states.iter().position(|places| places.contains(&place)).unwrap_or(place);
            self.ropes.rerotate(layer, keys, dropped)
        })
    }

    fn normalized(&self, hidden: &Array) -> Result<Array> {
        self.ends()?.normalized(hidden)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.ends()?.logits(hidden)
    }
}
