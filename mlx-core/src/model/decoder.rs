//! The one decoder. A family is a [`DecoderConfig`], never a decoder of its own.

use std::ops::Range;

use mlx_rs::ops::{add, concatenate, multiply, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::batch::{Batch, Input};
use super::block::Block;
use super::config::{DecoderConfig, LayerConfig};
use super::embedding::Embedding;
use super::linear::{Linear, Part};
use super::mtp::{self, Fusion, MtpNames, READ_BEHIND};
use super::norm::Norm;
use super::pass::Pass;
use super::per_layer_input::PerLayerInputs;
use super::rope::Ropes;
use super::{Model, ModelSpec};
use crate::array::{scalar_like, slice_axis};
use crate::cache::{LayerState, SequenceState, Variant};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// A decoder-only transformer with its weights.
pub(crate) struct Decoder {
    spec: ModelSpec,
    config: DecoderConfig,
    dtype: Dtype,
    embedding: Embedding,
    per_layer_inputs: Option<PerLayerInputs>,
    /// What a head that predicts the token after the next one begins with.
    fusion: Option<Fusion>,
    ropes: Ropes,
    blocks: Vec<Block>,
    /// Where each layer's states are among those of a sequence; those that it borrows, if it does.
    states: Vec<Range<usize>>,
    norm: Norm,
    head: Linear,
}

impl Decoder {
    /// Takes all tensors that `config` asks for.
    pub(crate) fn load(family: &str, mut config: DecoderConfig, mut weights: Weights) -> Result<Self> {
        config.prepare(&mut weights)?;
        Self::take(family, config, weights, None)
    }

    /// The head of the same weights that predicts the token after the next one, if they have one. It reads
    /// [`Input::Behind`].
    pub(crate) fn load_mtp(
        family: &str,
        mut config: DecoderConfig,
        mut weights: Weights,
    ) -> Result<Option<Self>> {
        config.prepare_with_heads(&mut weights)?;
        let Some(names) = MtpNames::find(&mut weights, &config) else { return Ok(None) };
        let Some(config) = mtp::config_of_head(&config) else { return Ok(None) };
        Self::take(family, config, weights, Some(&names)).map(Some)
    }

    fn take(
        family: &str,
        config: DecoderConfig,
        mut weights: Weights,
        mtp: Option<&MtpNames>,
    ) -> Result<Self> {
        let (hidden, dtype) = (config.hidden_size, weights.dtype());
        let embedding = Embedding::load(&mut weights, "model.embed_tokens", config.vocab_size, hidden)?;
        let layers = config.layers.len();
        let per_layer_inputs = config.per_layer_input;
        let per_layer_inputs =
            per_layer_inputs.map(|config| PerLayerInputs::load(&mut weights, config, layers, hidden));
        let per_layer_inputs = per_layer_inputs.transpose()?;
        let blocks = (config.layers.iter().enumerate())
            .map(|(index, layer)| {
                let name = mtp.map_or_else(|| format!("model.layers.{index}"), |names| names.block.clone());
                Block::load(&mut weights, &name, &config, layer)
            })
            .collect::<Result<_>>()?;
        let norm = mtp.map_or("model.norm", |names| names.norm.as_str());
        let norm = Norm::load(&mut weights, norm, hidden, config.norm)?;
        let fusion = mtp.map(|names| Fusion::load(&mut weights, names, &config)).transpose()?;
        let head = if config.head.tie_word_embeddings {
            let bias = config.head.bias.then(|| weights.take("lm_head.bias", &[config.vocab_size]));
            embedding.head(bias.transpose()?)?
        } else {
            let part = Part { name: "lm_head", outputs: config.vocab_size };
            Linear::load(&mut weights, &[part], hidden, config.head.bias)?
        };
        let ropes =
            Ropes::new(config.layers.iter().map(|layer| layer.rope.as_ref()), weights.backend().fused_rope);
        let is_adapted = weights.is_adapted();
        let mut spec = ModelSpec::new(family, &config, &weights.finish()?);
        if mtp.is_some() {
            spec.footprint = spec.footprint.reading_behind(hidden, READ_BEHIND);
        }
        if is_adapted {
            spec.footprint = spec.footprint.adapted();
        }
        let states = places(&config.layers);
        Ok(Self {
            spec,
            config,
            dtype,
            embedding,
            per_layer_inputs,
            fusion,
            ropes,
            blocks,
            states,
            norm,
            head,
        })
    }
}

impl Decoder {
    /// `[T]` to `[T, hidden]`.
    fn embedded(&self, tokens: &Array) -> Result<Array> {
        let rows = self.embedding.rows(tokens)?;
        Ok(match self.config.embedding_scale {
            Some(scale) => multiply(&rows, scalar_like(scale, &rows)?)?,
            None => rows,
        })
    }
}

/// Embeddings `[T, hidden]` with other rows `[R, hidden]` at `R` places, which rise.
fn with_rows(embedded: &Array, rows: &Array, places: &[usize]) -> Result<Array> {
    let width = embedded.dim(0);
    let mut sources: Vec<i32> = (0..width).collect();
    for (row, &place) in places.iter().enumerate() {
        sources[place] = width + row as i32;
    }
    let all = concatenate(&[embedded, &rows.as_dtype(embedded.dtype())?], 0)?;
    Ok(all.take_axis(Array::from_slice(&sources, &[width]), 0)?)
}

/// Where the states of each layer are, if they stand in the order of layers.
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
        let mut deep = Vec::new();
        let (hidden, per_layer_inputs) = match batch.input() {
            Input::Tokens(tokens) => {
                let hidden = self.embedded(tokens)?;
                let inputs = self.per_layer_inputs.as_ref();
                let inputs = inputs.map(|inputs| inputs.forward(tokens, &hidden, self.dtype)).transpose()?;
                (hidden, inputs)
            }
            Input::Pictured { tokens, rows, places, .. } => {
                let width = self.config.hidden_size as i32;
                let part = |index: i32| slice_axis(rows, 1, index * width, (index + 1) * width);
                let hidden = with_rows(&self.embedded(tokens)?, &part(0)?, places)?;
                for index in 1..rows.dim(1) / width {
                    let nothing = zeros_dtype(hidden.shape(), hidden.dtype())?;
                    deep.push(with_rows(&nothing, &part(index)?, places)?);
                }
                let inputs = self.per_layer_inputs.as_ref();
                let inputs = inputs.map(|inputs| inputs.forward(tokens, &hidden, self.dtype)).transpose()?;
                (hidden, inputs)
            }
            Input::Behind { tokens, hidden } => match &self.fusion {
                Some(fusion) => (fusion.forward(&self.embedded(tokens)?, hidden)?, None),
                None => return Err(Error::request("hidden", "is read by heads that draft alone")),
            },
            Input::Embeddings(_) if self.per_layer_inputs.is_some() => {
                let message = format!(
                    "cannot be the input of {}, whose layers have embeddings of their own for each token",
                    self.spec.family
                );
                return Err(Error::request("embeddings", message));
            }
            // What an encoder gives is not scaled, and has no tokens.
            Input::Embeddings(rows) => (rows.as_dtype(self.dtype)?, None),
        };
        Ok(Pass { batch, rotary: Vec::new(), per_layer_inputs, deep, hidden, layer: 0 })
    }

    fn advance(&self, pass: &mut Pass, layers: usize, states: &mut [&mut SequenceState]) -> Result<()> {
        if pass.rotary.is_empty() {
            let long = pass.long_rows(states);
            let shifts: Vec<i32> = states.iter().map(|state| state.position_shift()).collect();
            pass.rotary = self.ropes.rotary(&pass.batch.shifted(&shifts)?, &long)?;
        }
        let mut end = pass.layer.saturating_add(layers);
        // Layers without states of their own follow at once: a state whose layers are done looks like one whose pass is.
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
            if let Some(rows) = pass.deep.get(layer) {
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
        self.norm.forward(hidden)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.config.head.logits(self.head.forward(&self.normalized(hidden)?)?)
    }
}
