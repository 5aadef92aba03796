//! The shape of latent attention, as config.json gives it.

use crate::model::attention::{AttentionBiases, AttentionConfig, AttentionTemperatureConfig, Projections};

/// The shape of a latent attention block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentConfig {
    /// Query heads.
    pub num_heads: usize,
    /// The width of the latent of queries; `None` where queries have none.
    pub q_lora_rank: Option<usize>,
    /// The width of the latent of keys and values.
    pub kv_lora_rank: usize,
    /// Dimensions of a query that do not rotate.
    pub qk_nope_head_dim: usize,
    /// Dimensions of a query that rotate, and of the key that all heads share.
    pub qk_rope_head_dim: usize,
    /// Dimensions of a head's value.
    pub v_head_dim: usize,
    /// Whether the projections from the residual stream and the output have biases.
    pub bias: bool,
    /// The factor of the product of a query and a key.
    pub scale: f32,
    /// A factor of queries that grows with their position.
    pub temperature: Option<AttentionTemperatureConfig>,
}

impl LatentConfig {
    /// Dimensions of a query as it is projected.
    pub(super) fn query_width(&self) -> usize {
        self.qk_nope_head_dim + self.qk_rope_head_dim
    }

    /// Numbers that a state keeps of a position.
    pub(in crate::model) fn latent_width(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }

    /// Attention in the space of latents: all query heads share one key.
    pub(in crate::model) fn attention(&self) -> AttentionConfig {
        AttentionConfig {
            num_heads: self.num_heads,
            num_kv_heads: 1,
            head_dim: self.latent_width(),
            projections: Projections::Apart,
            biases: AttentionBiases::default(),
            norm: None,
            scale: self.scale,
            softcap: None,
            sinks: false,
            output_gate: None,
            attention_k_eq_v: false,
            value_norm: None,
            two_way_pictures: false,
            temperature: None,
        }
    }

    /// Numbers of a row that are alive at once: queries in both spaces, what they attend to, values.
    pub(in crate::model) fn numbers_per_row(&self) -> usize {
        self.num_heads * (3 * self.query_width() + 4 * self.latent_width() + self.v_head_dim)
            + self.q_lora_rank.unwrap_or(0)
            + 4 * self.latent_width()
    }
}
