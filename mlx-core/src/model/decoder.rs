//! The one decoder. A family is a [`DecoderConfig`], never a decoder of its own.

use mlx_rs::ops::multiply;
use mlx_rs::{Array, Dtype};

use super::attention::AttentionConfig;
use super::batch::{Batch, Input};
use super::block::{Block, BlockConfig};
use super::feed_forward::FeedForwardConfig;
use super::head::HeadConfig;
use super::linear::{Linear, Matrix, Part};
use super::mixer::MixerKind;
use super::moe::MoeConfig;
use super::norm::{Norm, NormConfig};
use super::pass::Pass;
use super::rope::{RopeConfig, Ropes};
use super::tensors::TensorNames;
use super::{Model, ModelSpec};
use crate::array::scalar_like;
use crate::cache::{LayerState, SequenceState, Variant};
use crate::error::Result;
use crate::weights::Weights;

/// Everything that differs between checkpoints of the families that this decoder covers.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// The number of token ids.
    pub vocab_size: usize,
    /// The longest sequence the checkpoint was trained for, in tokens.
    pub max_position_embeddings: usize,
    /// The width of the residual stream.
    pub hidden_size: usize,
    /// What is particular to each layer.
    pub layers: Vec<LayerConfig>,
    /// How the parts of every layer are put together.
    pub block: BlockConfig,
    /// All norms but those of queries and keys.
    pub norm: NormConfig,
    /// The attention of every layer.
    pub attention: AttentionConfig,
    /// The feed-forward block of every layer that has no experts.
    pub feed_forward: FeedForwardConfig,
    /// The experts of every layer that has some.
    pub experts: Option<MoeConfig>,
    /// What embeddings are multiplied with.
    pub embedding_scale: Option<f32>,
    /// From the last norm to logits.
    pub head: HeadConfig,
    /// What the checkpoint's tensors are called.
    pub tensors: TensorNames,
}

impl DecoderConfig {
    /// Lets `weights` be asked for the decoder's tensors, and drops what it has no use for. A head of its own makes itself known
    /// here, whatever config.json says.
    pub(super) fn prepare(&mut self, weights: &mut Weights) -> Result<()> {
        self.tensors.prepare(weights);
        // Old exports carry the rope table, which is computed here.
        weights.skip_all(|name| name.ends_with("rotary_emb.inv_freq") || name.ends_with(".rope.inv_freq"));
        if self.attention.biases.as_found {
            let has = |part: &str| weights.has(&format!("model.layers.0.self_attn.{part}.bias"));
            self.attention.biases.qkv = has("q_proj") || has("qkv_proj");
            self.attention.biases.output = has("o_proj");
        }
        if self.head.tie_word_embeddings && weights.has("lm_head.weight") {
            // Some exports write the shared matrix twice; in some, config.json is wrong about it.
            self.head.tie_word_embeddings =
                weights.are_equal("lm_head.weight", "model.embed_tokens.weight")?;
        }
        if self.head.tie_word_embeddings {
            for part in ["weight", "scales", "biases"] {
                weights.skip(&format!("lm_head.{part}"));
            }
        }
        Ok(())
    }
}

/// What may differ from layer to layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// What lets its rows see each other.
    pub mixer: MixerKind,
    /// How many positions a row sees, itself included, at least 1; all of them if `None`.
    pub sliding_window: Option<usize>,
    /// Rotary embedding of queries and keys; `None` for a layer that does not know positions.
    pub rope: Option<RopeConfig>,
    /// Whether it has experts, if the model has any.
    pub is_moe: bool,
}

/// A decoder-only transformer with its weights.
pub(crate) struct Decoder {
    spec: ModelSpec,
    config: DecoderConfig,
    dtype: Dtype,
    /// `[vocabulary, hidden]`
    embedding: Matrix,
    ropes: Ropes,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
}

impl Decoder {
    /// Takes all tensors that `config` asks for.
    pub(crate) fn load(family: &str, mut config: DecoderConfig, mut weights: Weights) -> Result<Self> {
        config.prepare(&mut weights)?;
        let (hidden, dtype) = (config.hidden_size, weights.dtype());
        let embedding = Matrix::load(&mut weights, "model.embed_tokens", config.vocab_size, hidden)?;
        let blocks = (config.layers.iter().enumerate())
            .map(|(index, layer)| {
                let name = format!("model.layers.{index}");
                Block::load(&mut weights, &name, &config, layer)
            })
            .collect::<Result<_>>()?;
        let norm = Norm::load(&mut weights, "model.norm", hidden, config.norm)?;
        let head = if config.head.tie_word_embeddings {
            Linear::new(embedding.clone())
        } else {
            let part = Part { name: "lm_head", outputs: config.vocab_size };
            Linear::load(&mut weights, &[part], hidden, false)?
        };
        let ropes =
            Ropes::new(config.layers.iter().map(|layer| layer.rope.as_ref()), weights.backend().fused_rope);
        let spec = ModelSpec::new(family, &config, &weights.finish()?);
        Ok(Self { spec, config, dtype, embedding, ropes, blocks, norm, head })
    }
}

impl Model for Decoder {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn new_state(&self, variant: Variant) -> SequenceState {
        let layer = |layer: &LayerConfig| match layer.mixer {
            MixerKind::Attention => LayerState::new(layer.sliding_window),
        };
        SequenceState::new(self.config.layers.iter().map(layer).collect(), variant)
    }

    fn begin(&self, batch: Batch) -> Result<Pass> {
        let mut hidden = match batch.input() {
            Input::Tokens(tokens) => self.embedding.rows(tokens, self.dtype)?,
            // What an encoder gives is not scaled.
            Input::Embeddings(rows) => {
                let hidden = rows.as_dtype(self.dtype)?;
                return Ok(Pass { batch, rotary: Vec::new(), hidden, layer: 0 });
            }
        };
        if let Some(scale) = self.config.embedding_scale {
            hidden = multiply(&hidden, scalar_like(scale, &hidden)?)?;
        }
        Ok(Pass { batch, rotary: Vec::new(), hidden, layer: 0 })
    }

    fn advance(&self, pass: &mut Pass, layers: usize, states: &mut [&mut SequenceState]) -> Result<()> {
        if pass.rotary.is_empty() {
            let long = pass.long_rows(states);
            pass.rotary = self.ropes.rotary(&pass.batch.positions().rows()?, &long)?;
        }
        let end = self.blocks.len().min(pass.layer.saturating_add(layers));
        for layer in pass.layer..end {
            let mut of_layer: Vec<&mut LayerState> =
                states.iter_mut().map(|state| state.layer_mut(layer)).collect();
            let rotary = self.ropes.of_layer(&pass.rotary, layer);
            pass.hidden = self.blocks[layer].forward(&pass.hidden, &pass.batch, rotary, &mut of_layer)?;
        }
        pass.layer = end;
        Ok(())
    }

    fn shift(&self, state: &mut SequenceState, kept: usize, dropped: usize) -> Result<()> {
        state.shift(kept, dropped, |layer, keys| self.ropes.rerotate(layer, keys, dropped))
    }

    fn normalized(&self, hidden: &Array) -> Result<Array> {
        self.norm.forward(hidden)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.config.head.logits(self.head.forward(&self.normalized(hidden)?)?)
    }
}
