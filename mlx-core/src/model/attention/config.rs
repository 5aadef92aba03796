//! The shape of an attention block, as config.json gives it.

use super::heads::Heads;
use super::qk_norm::QkNormConfig;
use super::temperature::AttentionTemperatureConfig;
use crate::model::norm::NormConfig;

/// How a checkpoint lays out the projections of queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projections {
    /// `q_proj`, `k_proj`, `v_proj`.
    Apart,
    /// All queries, all keys, all values, in `qkv_proj`.
    InOne,
    /// In `qkv_proj`, for each key head: the queries that share it, the key, the value.
    ByKeyHead,
}

/// Where the gates are whose sigmoids the output of attention is multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputGate {
    /// In `q_proj`, beside each query.
    BesideQueries,
    /// In `gate_proj`.
    Apart,
}

/// Which projections of an attention block have biases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttentionBiases {
    /// Those of queries, keys and values.
    pub qkv: bool,
    /// That of the output.
    pub output: bool,
    /// Whether config.json does not say: the biases are those that the checkpoint has.
    pub as_found: bool,
}

/// The shape of an attention block.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// How their projections are laid out.
    pub projections: Projections,
    /// Which projections have biases.
    pub biases: AttentionBiases,
    /// Norms of queries and keys.
    pub norm: Option<QkNormConfig>,
    /// The factor of the product of a query and a key.
    pub scale: f32,
    /// Scores are capped below this: `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Whether each head has a learned score that takes part in the softmax without a value.
    pub sinks: bool,
    /// The gates of the output.
    pub output_gate: Option<OutputGate>,
    /// Whether values are the keys as projected, before their norm and rope: there is no `v_proj`.
    pub attention_k_eq_v: bool,
    /// A norm of each value head, without a weight.
    pub value_norm: Option<NormConfig>,
    /// Whether, in layers with a window, the rows of a picture also see those of its rows that follow them.
    pub two_way_pictures: bool,
    /// A factor of queries that grows with their position.
    pub temperature: Option<AttentionTemperatureConfig>,
}

impl AttentionConfig {
    pub(super) fn heads(&self) -> Heads {
        Heads { query: self.num_heads, key: self.num_kv_heads, size: self.head_dim }
    }
}
