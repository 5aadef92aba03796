//! A prompt as one vector: the mean of its last hidden states, or the last of them, taken while it is prefilled.

use std::ops::Range;

use mlx_rs::Array;

use crate::array::Rows;
use crate::config::Fields;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::model::Model;

/// Which of a prompt's hidden states become its vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all.
    Mean,
    /// The last one.
    Last,
}

impl Pooling {
    /// What a model was trained for: what `1_Pooling/config.json` of sentence-transformers names. Without that file the last state,
    /// if the tokenizer ends every text with a special token, as those of embedding models with causal attention do; otherwise the
    /// mean.
    ///
    /// # Errors
    /// When the file is damaged, or names another way.
    pub fn of(folder: &ModelFolder) -> Result<Self> {
        if let Some(fields) = Fields::read_optional(&folder.path.join("1_Pooling/config.json"))? {
            let is_set = |name| fields.optional_flag(name).map(|set| set.unwrap_or(false));
            return match (is_set("pooling_mode_lasttoken")?, is_set("pooling_mode_mean_tokens")?) {
                (true, false) => Ok(Self::Last),
                (false, true) => Ok(Self::Mean),
                _ => Err(Error::request(
                    "pooling",
                    "is neither mean nor last in 1_Pooling/config.json; give one",
                )),
            };
        }
        let last = folder.tokenizer.encode("a", true)?.last().copied();
        Ok(if last.is_some_and(|id| folder.tokenizer.is_special(id)) { Self::Last } else { Self::Mean })
    }
}

/// A vector in the making.
pub(in crate::engine) struct Embedding {
    pooling: Pooling,
    sum: Vec<f64>,
    /// The next position to add.
    next: usize,
}

impl Embedding {
    pub(in crate::engine) fn new(pooling: Pooling) -> Self {
        Self { pooling, sum: Vec::new(), next: 0 }
    }

    /// Adds the positions `range`, whose hidden state before the last norm is `hidden`.
    pub(in crate::engine) fn extend(
        &mut self,
        model: &dyn Model,
        hidden: &Array,
        range: Range<usize>,
    ) -> Result<()> {
        let rows = Rows::new(&model.normalized(hidden)?)?;
        let width = rows.width();
        self.sum.resize(width, 0.0);
        // A replay passes over what has been added.
        let seen = self.next.saturating_sub(range.start);
        for row in rows.values()?.chunks_exact(width).skip(seen) {
            if self.pooling == Pooling::Last {
                self.sum.fill(0.0);
            }
            for (sum, value) in self.sum.iter_mut().zip(row) {
                *sum += f64::from(*value);
            }
        }
        self.next = self.next.max(range.end);
        Ok(())
    }

    /// The vector, not normalized to any length.
    pub(in crate::engine) fn vector(&self) -> Result<Vec<f32>> {
        let count = match self.pooling {
            Pooling::Mean => self.next.max(1) as f64,
            Pooling::Last => 1.0,
        };
        let vector: Vec<f32> = self.sum.iter().map(|sum| (sum / count) as f32).collect();
        if vector.iter().all(|value| value.is_finite()) {
            Ok(vector)
        } else {
            Err(Error::NotFinite("a hidden state"))
        }
    }
}
