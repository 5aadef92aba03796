//! The one decoder. A family is a [`DecoderConfig`], never a decoder of its own.

use mlx_rs::Array;

use super::attention::AttentionConfig;
use super::batch::{Batch, Pass};
use super::block::Block;
use super::feed_forward::FeedForwardConfig;
use super::linear::{Linear, Part};
use super::norm::RmsNorm;
use super::{Model, ModelSpec};
use crate::cache::{LayerCache, SequenceCache};
use crate::error::Result;
use crate::weights::Weights;

/// Everything that differs between checkpoints of the families that this decoder covers.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// The number of token ids.
    pub vocabulary: usize,
    /// The longest sequence the checkpoint was trained for, in tokens.
    pub context: usize,
    /// The number of layers.
    pub layers: usize,
    /// The width of the residual stream.
    pub hidden: usize,
    /// Added to the mean square before its root.
    pub norm_epsilon: f32,
    /// The attention of every layer.
    pub attention: AttentionConfig,
    /// The feed-forward block of every layer.
    pub feed_forward: FeedForwardConfig,
    /// Whether the head is the embedding.
    pub tied_head: bool,
}

/// A decoder-only transformer with its weights.
pub(crate) struct Decoder {
    spec: ModelSpec,
    /// `[vocabulary, hidden]`
    embedding: Array,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
}

impl Decoder {
    /// Takes all tensors that `config` asks for.
    pub(crate) fn load(family: &str, config: &DecoderConfig, mut weights: Weights) -> Result<Self> {
        let hidden = config.hidden;
        let embedding = weights.take("model.embed_tokens.weight", &[config.vocabulary, hidden])?;
        let blocks = (0..config.layers)
            .map(|layer| {
                let name = format!("model.layers.{layer}");
                // Old exports carry the rope table, which is computed here.
                weights.skip(&format!("{name}.self_attn.rotary_emb.inv_freq"));
                Block::load(&mut weights, &name, config)
            })
            .collect::<Result<_>>()?;
        let norm = RmsNorm::load(&mut weights, "model.norm", hidden, config.norm_epsilon)?;
        let head = if config.tied_head {
            // Some exports write the shared matrix twice.
            weights.skip("lm_head.weight");
            Linear::new(&embedding, None)?
        } else {
            let part = Part { name: "lm_head", outputs: config.vocabulary };
            Linear::load(&mut weights, &[part], hidden, false)?
        };
        let spec = ModelSpec::new(family, config, &weights);
        weights.finish()?;
        Ok(Self { spec, embedding, blocks, norm, head })
    }
}

impl Model for Decoder {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn new_cache(&self) -> SequenceCache {
        SequenceCache::new(self.blocks.iter().map(|_| LayerCache::new(None)).collect())
    }

    fn begin(&self, batch: Batch) -> Result<Pass> {
        let hidden = self.embedding.take_axis(batch.tokens(), 0)?;
        Ok(Pass { batch, hidden, layer: 0 })
    }

    fn advance(&self, pass: &mut Pass, layers: usize, caches: &mut [&mut SequenceCache]) -> Result<()> {
        let end = self.blocks.len().min(pass.layer.saturating_add(layers));
        for layer in pass.layer..end {
            let mut of_layer: Vec<&mut LayerCache> =
                caches.iter_mut().map(|cache| cache.layer_mut(layer)).collect();
            pass.hidden = self.blocks[layer].forward(&pass.hidden, &pass.batch, &mut of_layer)?;
        }
        pass.layer = end;
        Ok(())
    }

    fn normalised(&self, hidden: &Array) -> Result<Array> {
        self.norm.forward(hidden)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.head.forward(&self.normalised(hidden)?)
    }
}
