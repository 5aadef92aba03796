//! Gemma 4's tower. It has a position table for each axis, norms before and after each part of a block, and matrices with clipped inputs and
//! outputs. Squares of patches are averaged into one row.

mod config;

use mlx_rs::ops::{add, multiply, subtract};
use mlx_rs::{Array, Dtype};

pub(super) use self::config::Gemma4Config;
use super::attention::attend;
use super::axial_rope::AxialRope;
use crate::array::{scalar_like, slice_axis};
use crate::error::{Error, Result};
use crate::model::activation::Activated;
use crate::model::clipped_linear::ClippedLinear;
use crate::model::linear::{Linear, Part};
use crate::model::norm::Norm;
use crate::weights::Weights;

/// The tower with its projector.
pub(super) struct Gemma4Tower {
    config: Gemma4Config,
    input_proj: Linear,
    /// The tables of columns and of rows: `[2, positions, hidden]`
    position_embedding_table: Array,
    layers: Vec<Layer>,
    /// The bias that is subtracted from the rows and the factor that follows, `[hidden]` each in f32.
    standard: Option<(Array, Array)>,
    projection: Linear,
    dtype: Dtype,
}

impl Gemma4Tower {
    /// Loads the tower's tensors under `{tower}.`, such as `patch_embedder`, and `{projector}.embedding_projection`.
    pub(super) fn load(
        weights: &mut Weights,
        tower: &str,
        projector: &str,
        config: &Gemma4Config,
    ) -> Result<Self> {
        let (hidden, shape) = (config.hidden_size, config.shape);
        let input = Part { name: &format!("{tower}.patch_embedder.input_proj"), outputs: hidden };
        let output = Part { name: &format!("{projector}.embedding_projection"), outputs: shape.row_width };
        let table = format!("{tower}.patch_embedder.position_embedding_table");
        let mut standard = |part: &str| -> Result<Array> {
            Ok(weights.take(&format!("{tower}.{part}"), &[hidden])?.as_dtype(Dtype::Float32)?)
        };
        let standard =
            config.standardize.then(|| Ok::<_, Error>((standard("std_bias")?, standard("std_scale")?)));
        let standard = standard.transpose()?;
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for index in 0..config.num_hidden_layers {
            layers.push(Layer::load(weights, &format!("{tower}.encoder.layers.{index}"), config)?);
        }
        Ok(Self {
            input_proj: Linear::load(weights, &[input], 3 * shape.patch_size * shape.patch_size, false)?,
            position_embedding_table: weights.take(&table, &[2, config.position_embedding_size, hidden])?,
            layers,
            standard,
            projection: Linear::load(weights, &[output], hidden, false)?,
            dtype: weights.dtype(),
            config: config.clone(),
        })
    }

    /// Maps the patches of one picture, `[patches, 3 * patch_size^2]`, in a grid of rows and columns, to `[squares, text]`.
    pub(super) fn forward(&self, patches: &Array, grid: (usize, usize)) -> Result<Array> {
        let Gemma4Config { head_dim, rope_theta, norm, .. } = self.config;
        let rope = AxialRope::by_axis(grid, head_dim, rope_theta, self.dtype)?;
        let mut hidden = self.input_proj.forward(&patches.as_dtype(self.dtype)?)?;
        hidden = add(hidden, self.positions(grid)?)?;
        for layer in &self.layers {
            hidden = layer.forward(&hidden, &rope, &self.config)?;
            // Evaluating here limits the memory to that of one layer.
            hidden.eval()?;
        }
        self.projection.forward(&norm.plain(&self.pooled(&hidden, grid)?)?)
    }

    /// Returns the learned positions of all patches, `[patches, hidden]`.
    fn positions(&self, (rows, columns): (usize, usize)) -> Result<Array> {
        let (most, hidden) = (self.config.position_embedding_size, self.config.hidden_size as i32);
        if rows.max(columns) > most {
            let message =
                format!("has {columns} x {rows} patches; the tower has positions for {most} per side");
            return Err(Error::request("image", message));
        }
        let (rows, columns) = (rows as i32, columns as i32);
        let axis = |index: i32, count: i32| -> Result<Array> {
            let table = slice_axis(&self.position_embedding_table, 0, index, index + 1)?;
            slice_axis(&table, 1, 0, count)
        };
        let (across, down) = (axis(0, columns)?, axis(1, rows)?.reshape(&[rows, 1, hidden])?);
        Ok(add(across, down)?.reshape(&[rows * columns, hidden])?)
    }

    /// Maps `[patches, hidden]` of a grid of rows and columns to the scaled mean of each square, `[squares, hidden]`.
    fn pooled(&self, input: &Array, (rows, columns): (usize, usize)) -> Result<Array> {
        let (side, width) = (self.config.shape.spatial_merge_size as i32, input.dim(1));
        let (rows, columns) = (rows as i32 / side, columns as i32 / side);
        let means = input
            .reshape(&[rows, side, columns, side, width])?
            .as_dtype(Dtype::Float32)?
            .mean_axes(&[1, 3], false)?
            .reshape(&[rows * columns, width])?
            .as_dtype(self.dtype)?
            .as_dtype(Dtype::Float32)?;
        let scaled = multiply(&means, scalar_like((width as f32).sqrt(), &means)?)?;
        let standard = match &self.standard {
            Some((bias, scale)) => multiply(subtract(scaled, bias)?, scale)?,
            None => scaled,
        };
        Ok(standard.as_dtype(self.dtype)?)
    }
}

struct Layer {
    input_layernorm: Norm,
    /// The projections to queries, keys and values.
    projections: [ClippedLinear; 3],
    q_norm: Norm,
    k_norm: Norm,
    o_proj: ClippedLinear,
    post_attention_layernorm: Norm,
    pre_feedforward_layernorm: Norm,
    gate_proj: ClippedLinear,
    activation: Activated,
    up_proj: ClippedLinear,
    down_proj: ClippedLinear,
    post_feedforward_layernorm: Norm,
}

impl Layer {
    fn load(weights: &mut Weights, name: &str, config: &Gemma4Config) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.shape.intermediate_size);
        let (queries, keys) = (config.shape.num_heads, config.num_key_value_heads);
        let (queries, keys) = (queries * config.head_dim, keys * config.head_dim);
        let mut linear = |part: &str, outputs: usize, inputs: usize| {
            ClippedLinear::load(
                weights,
                &format!("{name}.{part}"),
                outputs,
                inputs,
                config.use_clipped_linears,
            )
        };
        let projections = [
            linear("self_attn.q_proj", queries, hidden)?,
            linear("self_attn.k_proj", keys, hidden)?,
            linear("self_attn.v_proj", keys, hidden)?,
        ];
        let (o_proj, gate_proj) =
            (linear("self_attn.o_proj", hidden, queries)?, linear("mlp.gate_proj", inner, hidden)?);
        let (up_proj, down_proj) =
            (linear("mlp.up_proj", inner, hidden)?, linear("mlp.down_proj", hidden, inner)?);
        let activation = Activated::load(weights, name, config.hidden_activation)?;
        let mut norm =
            |part: &str, width: usize| Norm::load(weights, &format!("{name}.{part}"), width, config.norm);
        Ok(Self {
            input_layernorm: norm("input_layernorm", hidden)?,
            projections,
            q_norm: norm("self_attn.q_norm", config.head_dim)?,
            k_norm: norm("self_attn.k_norm", config.head_dim)?,
            o_proj,
            post_attention_layernorm: norm("post_attention_layernorm", hidden)?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm", hidden)?,
            gate_proj,
            activation,
            up_proj,
            down_proj,
            post_feedforward_layernorm: norm("post_feedforward_layernorm", hidden)?,
        })
    }

    /// Maps `[patches, hidden]` to the same shape.
    fn forward(&self, input: &Array, rope: &AxialRope, config: &Gemma4Config) -> Result<Array> {
        let mixed = self.attention(&self.input_layernorm.forward(input)?, rope, config)?;
        let hidden = add(input, self.post_attention_layernorm.forward(&mixed)?)?;
        let normed = self.pre_feedforward_layernorm.forward(&hidden)?;
        let gate = self.activation.forward(&self.gate_proj.forward(&normed)?)?;
        let inner = self.down_proj.forward(&multiply(gate, self.up_proj.forward(&normed)?)?)?;
        Ok(add(&hidden, self.post_feedforward_layernorm.forward(&inner)?)?)
    }

    fn attention(&self, input: &Array, rope: &AxialRope, config: &Gemma4Config) -> Result<Array> {
        let by_head = |projection: &ClippedLinear| -> Result<Array> {
            let heads = projection.forward(input)?;
            Ok(heads.reshape(&[1, input.dim(0), -1, config.head_dim as i32])?)
        };
        let heads_first = |rows: &Array| rows.transpose_axes(&[0, 2, 1, 3]);
        let [queries, keys, values] = self.projections.each_ref().map(by_head);
        let queries = rope.rotate(&heads_first(&self.q_norm.forward(&queries?)?)?)?;
        let keys = rope.rotate(&heads_first(&self.k_norm.forward(&keys?)?)?)?;
        let values = heads_first(&config.norm.plain(&values?)?)?;
        self.o_proj.forward(&attend(&queries, &keys, &values, 1.0)?)
    }
}
