//! The config of latent attention.

use crate::model::attention::{AttentionConfig, AttentionTemperatureConfig};

/// The shape of a latent attention block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentConfig {
    /// The number of query heads.
    pub num_heads: usize,
    /// The width of the latent of queries; `None` if queries have no latent.
    pub q_lora_rank: Option<usize>,
    /// The width of the latent of keys and values.
    pub kv_lora_rank: usize,
    /// The dimensions of a query that are not rotated.
    pub qk_nope_head_dim: usize,
    /// The dimensions of a query that are rotated. The key that all heads share has the same number.
    pub qk_rope_head_dim: usize,
    /// The dimensions of a head's value.
    pub v_head_dim: usize,
    /// True if the output and the projections that read the residual stream have biases.
    pub bias: bool,
    /// True if the sigmoid of a number per head scales the output of attention.
    pub head_gate: bool,
    /// The factor of the product of a query and a key.
    pub scale: f32,
    /// A factor of queries that grows with their position.
    pub temperature: Option<AttentionTemperatureConfig>,
}

impl LatentConfig {
    /// The dimensions of a projected query.
    pub(in crate::model) fn query_width(&self) -> usize {
        self.qk_nope_head_dim + self.qk_rope_head_dim
    }

    /// The numbers that a state stores per position.
    pub(in crate::model) fn latent_width(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }

    /// Returns the config of attention in the space of latents: all query heads share one key.
    pub(in crate::model) fn attention(&self) -> AttentionConfig {
        AttentionConfig {
            scale: self.scale,
            ..AttentionConfig::plain(self.num_heads, 1, self.latent_width())
        }
    }

    /// The numbers of a row that exist at the same time: queries in both spaces, the output of attention, and values.
    pub(in crate::model) fn numbers_per_row(&self) -> usize {
        self.num_heads * (3 * self.query_width() + 4 * self.latent_width() + self.v_head_dim)
            + self.q_lora_rank.unwrap_or(0)
            + 4 * self.latent_width()
    }
}
