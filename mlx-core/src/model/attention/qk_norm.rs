//! Norms of queries and keys before attention (Dehghani et al., 2023, arXiv:2302.05442): of each head, or of all heads together.

use mlx_rs::ops::{add, concatenate, multiply, rsqrt, square};
use mlx_rs::{Array, Dtype};

use super::heads::Heads;
use crate::array::slice_axis;
use crate::error::Result;
use crate::model::norm::{Norm, NormConfig};
use crate::weights::{Shard, Weights};

/// The values that are normalized together, and their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNormScope {
    /// Each head. All query heads share a weight, and all key heads share another: `q_norm.weight` is `[D]`.
    Head,
    /// Each head with a separate weight, `[H, D]`.
    HeadOwnWeights,
    /// Each head with a separate weight in a separate tensor: `q_norm.norms.{head}.weight` is `[D]`.
    HeadOwnTensors,
    /// All heads together: `q_norm.weight` is `[H D]`.
    Width,
}

/// The norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNormConfig {
    /// The values that are normalized together.
    pub scope: QkNormScope,
    /// True if the norm follows the rotation instead of preceding it.
    pub after_rope: bool,
    /// The norm.
    pub norm: NormConfig,
}

impl QkNormConfig {
    /// Returns these norms, placed after the rotation.
    pub(in crate::model) fn after_rope(self) -> Self {
        Self { after_rope: true, ..self }
    }
}

/// Norms of queries and keys with their weights.
pub(super) enum QkNorm {
    /// `[H, 1, D]`, query heads before key heads; `None` without weights.
    PerHead { norm: NormConfig, weight: Option<Array> },
    /// Over the whole width of the queries, and of the keys.
    Width { query: Norm, key: Norm },
    /// Like `Width`, if other machines have the other heads.
    SharedWidth(SharedWidth),
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
        let shard = weights.shard().filter(|_| config.scope == QkNormScope::Width).cloned();
        if let Some(shard) = shard {
            let mut weight = |name, count| config.norm.weight(weights, name, &[count * heads.size]);
            let weights = [weight(&query, heads.query)?, weight(&key, heads.key)?];
            return Ok(Self::SharedWidth(SharedWidth { weights, eps: config.norm.eps, shard }));
        }
        if config.scope == QkNormScope::Width {
            return Ok(Self::Width {
                query: Norm::load(weights, &query, heads.query * heads.size, config.norm)?,
                key: Norm::load(weights, &key, heads.key * heads.size, config.norm)?,
            });
        }
        if !config.norm.kind.has_weight() {
            return Ok(Self::PerHead { norm: config.norm, weight: None });
        }
        let mut parts = head_weights(weights, &query, config, heads.query, heads.size)?;
        if !borrows {
            parts.extend(head_weights(weights, &key, config, heads.key, heads.size)?);
        }
        let weight = concatenate(&parts, 0)?.reshape(&[-1, 1, heads.size as i32])?;
        weight.eval()?;
        Ok(Self::PerHead { norm: config.norm, weight: Some(weight) })
    }

    /// Normalizes the whole width of queries and keys in `[R, (Hq + 2 Hk) D]`, if that is the scope.
    pub(super) fn normalize_width(&self, projected: Array, heads: Heads) -> Result<Array> {
        let (queries, keys) = ((heads.query * heads.size) as i32, (heads.key * heads.size) as i32);
        let part = |start, end| slice_axis(&projected, 1, start, end);
        let (query, key) = (|| part(0, queries), || part(queries, queries + keys));
        let [query, key] = match self {
            Self::PerHead { .. } => return Ok(projected),
            Self::Width { query: of_query, key: of_key } => {
                [of_query.forward(&query()?)?, of_key.forward(&key()?)?]
            }
            Self::SharedWidth(shared) => shared.forward([query()?, key()?])?,
        };
        Ok(concatenate(&[query, key, part(queries + keys, queries + 2 * keys)?], 1)?)
    }

    /// Normalizes each head of `[B, Hq + Hk, T, D]`, if that is the scope.
    pub(super) fn normalize_heads(&self, heads: Array) -> Result<Array> {
        match self {
            Self::PerHead { norm, weight: Some(weight) } => Ok(multiply(norm.plain(&heads)?, weight)?),
            Self::PerHead { norm, weight: None } => norm.plain(&heads),
            Self::Width { .. } | Self::SharedWidth(_) => Ok(heads),
        }
    }
}

/// Root mean square norms over the queries, and over the keys, of all machines. All machines have equally many heads, and each key head is on
/// equally many machines, so the mean of all is the mean of the machines' means.
pub(super) struct SharedWidth {
    /// The weights of this machine's queries and keys.
    weights: [Array; 2],
    eps: f32,
    shard: Shard,
}

impl SharedWidth {
    /// Normalizes queries and keys, `[R, H D]` each. The machines add up two numbers per row.
    fn forward(&self, parts: [Array; 2]) -> Result<[Array; 2]> {
        let dtype = parts[0].dtype();
        let [query, key] = parts.map(|part| part.as_dtype(Dtype::Float32));
        let (query, key) = (query?, key?);
        let mean = |part: &Array| square(part)?.mean_axis(-1, true);
        let sums = self.shard.sum(&concatenate(&[mean(&query)?, mean(&key)?], 1)?)?;
        let means = multiply(sums, Array::from_f32((self.shard.ranks as f32).recip()))?;
        let scales = rsqrt(add(means, Array::from_f32(self.eps))?)?;
        let normalized = |part: &Array, place: i32| -> Result<Array> {
            let unit = multiply(part, slice_axis(&scales, 1, place, place + 1)?)?.as_dtype(dtype)?;
            Ok(multiply(unit, &self.weights[place as usize])?)
        };
        Ok([normalized(&query, 0)?, normalized(&key, 1)?])
    }
}

/// Takes a weight `[D]` for each of `count` heads, or one `[count, D]` for all.
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
