//! Embeddings: one vector per prompt, pooled from its last hidden states during the prefill.

use std::ops::Range;

use mlx_rs::Array;

use crate::array::Rows;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::sentence_transformers::{Pooling, Poolings};

/// A partly computed embedding.
pub(in crate::engine) struct Embedding {
    parts: Vec<Part>,
    /// The first position that is pooled.
    first: usize,
    /// The next position to add.
    next: usize,
}

/// The vector of one pooling so far.
struct Part {
    pooling: Pooling,
    /// The sum or the maximum of the rows so far, or a single row.
    pooled: Vec<f64>,
    /// The sum of the rows' weights.
    weight: f64,
}

impl Embedding {
    /// Pools the positions from `first` on.
    pub(in crate::engine) fn new(poolings: Poolings, first: usize) -> Self {
        let part = |pooling| Part { pooling, pooled: Vec::new(), weight: 0.0 };
        Self { parts: poolings.modes().map(part).collect(), first, next: 0 }
    }

    /// Adds the positions `range` with hidden states `hidden`, taken before the last norm.
    pub(in crate::engine) fn extend(
        &mut self,
        model: &dyn Model,
        hidden: &Array,
        range: Range<usize>,
    ) -> Result<()> {
        let rows = Rows::new(&model.normalized(hidden)?)?;
        let width = rows.width();
        // A replay skips positions that were already added.
        let seen = self.next.max(self.first).saturating_sub(range.start);
        for (row, position) in rows.values()?.chunks_exact(width).zip(range.clone()).skip(seen) {
            for part in &mut self.parts {
                part.add(row, position);
            }
        }
        self.next = self.next.max(range.end);
        Ok(())
    }

    /// Returns the embedding, not normalized.
    pub(in crate::engine) fn vector(&self) -> Result<Vec<f32>> {
        let vector: Vec<f32> = self.parts.iter().flat_map(Part::vector).collect();
        if vector.iter().all(|value| value.is_finite()) {
            Ok(vector)
        } else {
            Err(Error::NotFinite("a hidden state"))
        }
    }
}

impl Part {
    fn add(&mut self, row: &[f32], position: usize) {
        self.pooled.resize(row.len(), 0.0);
        let (is_first, pooling) = (self.weight <= 0.0, self.pooling);
        if pooling == Pooling::Cls && !is_first {
            return;
        }
        let weight = if pooling == Pooling::WeightedMean { (position + 1) as f64 } else { 1.0 };
        for (pooled, value) in self.pooled.iter_mut().zip(row) {
            let value = f64::from(*value);
            *pooled = match pooling {
                Pooling::Cls | Pooling::Last => value,
                Pooling::Max if is_first => value,
                Pooling::Max => pooled.max(value),
                Pooling::Mean | Pooling::MeanSqrtLen | Pooling::WeightedMean => *pooled + weight * value,
            };
        }
        self.weight += weight;
    }

    fn vector(&self) -> impl Iterator<Item = f32> {
        let divisor = match self.pooling {
            Pooling::Cls | Pooling::Max | Pooling::Last => 1.0,
            Pooling::Mean | Pooling::WeightedMean => self.weight.max(1.0),
            Pooling::MeanSqrtLen => self.weight.max(1.0).sqrt(),
        };
        self.pooled.iter().map(move |sum| (sum / divisor) as f32)
    }
}
