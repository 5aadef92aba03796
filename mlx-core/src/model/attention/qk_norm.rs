//! Norms of queries and keys before attention (Dehghani et al., 2023, arXiv:2302.05442): of each head, or of all heads together.

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, multiply};

use super::heads::Heads;
use crate::array::slice_axis;
use crate::error::Result;
use crate::model::norm::{Norm, NormConfig};
use crate::weights::Weights;

/// What is normalized together, and with which weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNormScope {
    /// Each head; all query heads share a weight, and all key heads: `q_norm.weight` is `[D]`.
    Head,
    /// Each head with a weight of its own, `[H, D]`.
    HeadOwnWeights,
    /// Each head with a weight of its own, in a tensor of its own: `q_norm.norms.{head}.weight` is `[D]`.
    HeadOwnTensors,
    /// All heads together: `q_norm.weight` is `[H D]`.
    Width,
}

/// The norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNormConfig {
    /// What is normalized together.
    pub scope: QkNormScope,
    /// Whether it comes after the rotation instead of before.
    pub after_rope: bool,
    /// The norm.
    pub norm: NormConfig,
}

impl QkNormConfig {
    /// The same norms, after the rotation.
    pub(in crate::model) fn after_rope(self) -> Self {
        Self { after_rope: true, ..self }
    }
}

/// Norms of queries and keys with their weights.
pub(super) enum QkNorm {
    /// `[H, 1, D]`, query heads before key heads.
    PerHead { norm: NormConfig, weight: Array },
    /// Over the whole width of the queries, and of the keys.
    Width { query: Norm, key: Norm },
}

impl QkNorm {
    /// Takes `{name}.q_norm` and, unless the layer borrows its keys, `{name}.k_norm`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        config: QkNormConfig,
        heads: Heads,
        borrows: bool,
    ) -> Result<Self> {
        let (query, key) = (format!("{name}.q_norm"), format!("{name}.k_norm"));
        if config.scope == QkNormScope::Width {
            return Ok(Self::Width {
                query: Norm::load(weights, &query, heads.query * heads.size, config.norm)?,
                key: Norm::load(weights, &key, heads.key * heads.size, config.norm)?,
            });
        }
        let mut parts = head_weights(weights, &query, config, heads.query, heads.size)?;
        if !borrows {
            parts.extend(head_weights(weights, &key, config, heads.key, heads.size)?);
        }
        let weight = concatenate(&parts, 0)?.reshape(&[-1, 1, heads.size as i32])?;
        weight.eval()?;
        Ok(Self::PerHead { norm: config.norm, weight })
    }

    /// Normalizes the whole width of queries and keys in `[R, (Hq + 2 Hk) D]`, if that is the scope.
    pub(super) fn normalize_width(&self, projected: Array, heads: Heads) -> Result<Array> {
        let Self::Width { query, key } = self else { return Ok(projected) };
        let (queries, keys) = ((heads.query * heads.size) as i32, (heads.key * heads.size) as i32);
        let part = |start, end| slice_axis(&projected, 1, start, end);
        let parts = [
            query.forward(&part(0, queries)?)?,
            key.forward(&part(queries, queries + keys)?)?,
            part(queries + keys, queries + 2 * keys)?,
        ];
        Ok(concatenate(&parts, 1)?)
    }

    /// Normalizes each head of `[B, Hq + Hk, T, D]`, if that is the scope.
    pub(super) fn normalize_heads(&self, heads: Array) -> Result<Array> {
        match self {
            Self::PerHead { norm, weight } => Ok(multiply(norm.plain(&heads)?, weight)?),
            Self::Width { .. } => Ok(heads),
        }
    }
}

/// One weight `[D]` for each of `count` heads, or `[count, D]` of all.
fn head_weights(
    weights: &mut Weights,
    name: &str,
    config: QkNormConfig,
    count: usize,
    size: usize,
) -> Result<Vec<Array>> {
    let norm = config.norm;
    Ok(match config.scope {
        QkNormScope::HeadOwnWeights => vec![norm.weight(weights, name, &[count, size])?.reshape(&[-1])?],
        QkNormScope::HeadOwnTensors => (0..count)
            .map(|head| norm.weight(weights, &format!("{name}.norms.{head}"), &[size]))
            .collect::<Result<_>>()?,
        QkNormScope::Head | QkNormScope::Width => vec![norm.weight(weights, name, &[size])?; count],
    })
}
