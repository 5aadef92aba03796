//! The config of an attention block.

use super::head_gate::HeadGateConfig;
use super::heads::Heads;
use super::qk_norm::QkNormConfig;
use super::temperature::AttentionTemperatureConfig;
use crate::model::norm::NormConfig;

/// The layout of the projections of queries, keys and values in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projections {
    /// `q_proj`, `k_proj`, `v_proj`.
    Apart,
    /// All queries, all keys, all values, in `qkv_proj`.
    InOne,
    /// In `qkv_proj`, grouped by key head: its queries, the key, the value.
    ByKeyHead,
}

/// The projection with the gates of the output of attention. In the first two, the gates are sigmoids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputGate {
    /// In `q_proj`, after each query.
    BesideQueries,
    /// In `gate_proj`.
    Apart,
    /// In `g_proj`.
    Heads(HeadGateConfig),
}

/// The projections of an attention block that have biases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttentionBiases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// The output.
    pub output: bool,
    /// True if config.json has no such field. The tensors of the checkpoint decide.
    pub as_found: bool,
}

/// The config of an attention block.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads. Their number divides that of the query heads.
    pub num_kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// The layout of the projections.
    pub projections: Projections,
    /// The projections with biases.
    pub biases: AttentionBiases,
    /// The largest absolute value of projected queries, keys and values.
    pub clip_qkv: Option<f32>,
    /// Norms of queries and keys.
    pub norm: Option<QkNormConfig>,
    /// The factor of the product of a query and a key.
    pub scale: f32,
    /// Scores are capped below this: `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// True if each head has a learned score that enters the softmax without a value.
    pub sinks: bool,
    /// The output gates.
    pub output_gate: Option<OutputGate>,
    /// True if values are the projected keys before norm and rope. Then there is no `v_proj`.
    pub attention_k_eq_v: bool,
    /// A norm of each value head, without a weight.
    pub value_norm: Option<NormConfig>,
    /// True if, in layers with a window, the rows of a picture also attend to its later rows.
    pub two_way_pictures: bool,
    /// A factor of queries that grows with their position.
    pub temperature: Option<AttentionTemperatureConfig>,
}

impl AttentionConfig {
    /// Returns attention without norms, biases, caps and gates, whose scores are divided by the square root of the head's dimensions.
    pub(in crate::model) fn plain(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        Self {
            num_heads,
            num_kv_heads,
            head_dim,
            projections: Projections::Apart,
            biases: AttentionBiases::default(),
            clip_qkv: None,
            norm: None,
            scale: (head_dim as f32).sqrt().recip(),
            softcap: None,
            sinks: false,
            output_gate: None,
            attention_k_eq_v: false,
            value_norm: None,
            two_way_pictures: false,
            temperature: None,
        }
    }

    pub(super) fn heads(&self) -> Heads {
        Heads { query: self.num_heads, key: self.num_kv_heads, size: self.head_dim }
    }
}
