//! Per-layer embeddings (Gemma 3n and 4). Every layer gets a short vector for each token, computed from the token's row in a second table
//! and from its embedding. The layer adds a gated projection of the vector to the residual stream.

use mlx_rs::ops::{add, concatenate, multiply, select};
use mlx_rs::{Array, Dtype};

use super::activation::{Activated, Activation};
use super::linear::{Linear, Matrix, Part};
use super::norm::{Norm, NormConfig};
use crate::array::{from_tokens, scalar_like, slice_axis};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// The shape of per-layer embeddings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerLayerInputConfig {
    /// The width of a layer's vector.
    pub hidden_size: usize,
    /// The number of token ids in the table.
    pub vocab_size: usize,
    /// True if there are more tokens than in the table. They use the row of token 0.
    pub has_other_tokens: bool,
    /// The activation function of a layer's gate.
    pub activation: Activation,
    /// The config of all norms.
    pub norm: NormConfig,
    /// The token with the table row that is used for the rows of pictures.
    pub pad_token_id: u32,
}

/// The weights that compute the vectors of all layers.
pub(super) struct PerLayerInputs {
    config: PerLayerInputConfig,
    layers: usize,
    /// `[vocabulary, layers * width]`
    embedding: Matrix,
    projection: Linear,
    norm: Norm,
}

impl PerLayerInputs {
    /// Loads `model.embed_tokens_per_layer`, `model.per_layer_model_projection` and `model.per_layer_projection_norm`, for `layers` layers
    /// and embeddings of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        config: PerLayerInputConfig,
        layers: usize,
        hidden: usize,
    ) -> Result<Self> {
        let width = layers * config.hidden_size;
        let projection = Part { name: "model.per_layer_model_projection", outputs: width };
        let norm = "model.per_layer_projection_norm";
        Ok(Self {
            config,
            layers,
            embedding: weights.shared(&["model.embed_tokens_per_layer"], |weights| {
                Matrix::load(weights, "model.embed_tokens_per_layer", config.vocab_size, width)
            })?,
            projection: Linear::load(weights, &[projection], hidden, false)?,
            norm: Norm::load(weights, norm, config.hidden_size, config.norm)?,
        })
    }

    /// Returns the vectors `[T, layers, width]` of tokens `[T]` with scaled embeddings `hidden`, `[T, hidden]`.
    pub(super) fn forward(&self, tokens: &Array, hidden: &Array, dtype: Dtype) -> Result<Array> {
        let shape = [hidden.dim(0), self.layers as i32, self.config.hidden_size as i32];
        let known = self.config.has_other_tokens.then(|| {
            let count = Array::from_slice(&[self.config.vocab_size as u32], &[1]).as_dtype(tokens.dtype())?;
            let first = Array::from_slice(&[0_u32], &[1]).as_dtype(tokens.dtype())?;
            Ok::<_, Error>(select(tokens.lt(count)?, tokens, first)?)
        });
        let known = known.transpose()?;
        let tokens = known.as_ref().unwrap_or(tokens);
        let scaled = |array: Array, factor: f64| -> Result<Array> {
            Ok(multiply(&array, scalar_like(factor as f32, &array)?)?)
        };
        let scale = (self.config.hidden_size as f64).sqrt();
        let own = scaled(self.embedding.rows(tokens, dtype)?, scale)?.reshape(&shape)?;
        let scale = f64::from(hidden.dim(1)).sqrt().recip();
        let projected = scaled(self.projection.forward(hidden)?, scale)?.reshape(&shape)?;
        scaled(add(self.norm.forward(&projected)?, own)?, 0.5_f64.sqrt())
    }

    /// Replaces the tokens `[T]` at `places`, the rows of pictures, with the pad token.
    pub(super) fn without_pictures(&self, tokens: &Array, places: &[usize]) -> Result<Array> {
        let width = tokens.dim(0);
        let mut sources: Vec<i32> = (0..width).collect();
        for &place in places {
            sources[place] = width;
        }
        let pad = from_tokens(&[self.config.pad_token_id]).as_dtype(tokens.dtype())?;
        Ok(concatenate(&[tokens, &pad], 0)?.take_axis(Array::from_slice(&sources, &[width]), 0)?)
    }

    /// Returns the vectors of one layer, `[T, width]`.
    pub(super) fn of_layer(vectors: &Array, layer: usize) -> Result<Array> {
        let layer = layer as i32;
        Ok(slice_axis(vectors, 1, layer, layer + 1)?.squeeze_axes(&[1])?)
    }
}

/// The per-layer weights that apply a vector.
pub(super) struct PerLayerInput {
    gate: Linear,
    activation: Activated,
    projection: Linear,
    norm: Norm,
}

impl PerLayerInput {
    /// Loads the tensors under `{name}.`, for a residual stream of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: PerLayerInputConfig,
    ) -> Result<Self> {
        let [gate, projection, norm] =
            ["per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm"]
                .map(|part| format!("{name}.{part}"));
        let width = config.hidden_size;
        Ok(Self {
            gate: Linear::load(weights, &[Part { name: &gate, outputs: width }], hidden, false)?,
            activation: Activated::load(weights, name, config.activation)?,
            projection: Linear::load(weights, &[Part { name: &projection, outputs: hidden }], width, false)?,
            norm: Norm::load(weights, &norm, hidden, config.norm)?,
        })
    }

    /// Adds the gated projection of the layer's vectors, `[T, width]`, to the residual stream, `[T, hidden]`.
    pub(super) fn forward(&self, stream: &Array, vectors: &Array) -> Result<Array> {
        Ok(add(stream, self.of_token(stream, vectors)?)?)
    }

    /// Returns the gated projection of the layer's vectors, `[T, hidden]`.
    pub(super) fn of_token(&self, stream: &Array, vectors: &Array) -> Result<Array> {
        let open = multiply(self.activation.forward(&self.gate.forward(stream)?)?, vectors)?;
        self.norm.forward(&self.projection.forward(&open)?)
    }
}
