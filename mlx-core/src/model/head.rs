//! The scale and the soft cap of logits.

use mlx_rs::Array;
use mlx_rs::ops::{divide, multiply};

use super::softcap::softcap;
use crate::array::scalar_like;
use crate::error::Result;

/// The head of a model, and the operations on its output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadConfig {
    /// True if the head is the embedding.
    pub tie_word_embeddings: bool,
    /// True if the files have no head, as in many embedding models. The embedding replaces it, and the model generates no text.
    pub is_missing: bool,
    /// True if the head has a bias.
    pub bias: bool,
    /// The scale of logits.
    pub scale: Option<LogitScale>,
    /// The bound of logits: `cap * tanh(logit / cap)`.
    pub softcap: Option<f32>,
}

/// The scale as config.json has it. A half can often hold the number exactly, but not its reciprocal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LogitScale {
    /// Logits are multiplied by it.
    Times(f32),
    /// Logits are divided by it.
    Over(f32),
}

impl HeadConfig {
    /// Returns the logits `[R, vocabulary]` of the head's products, which have the same shape.
    pub(super) fn logits(&self, products: Array) -> Result<Array> {
        let number = |value| scalar_like(value, &products);
        let scaled = match self.scale {
            Some(LogitScale::Times(factor)) => multiply(&products, number(factor)?)?,
            Some(LogitScale::Over(divisor)) => divide(&products, number(divisor)?)?,
            None => products,
        };
        match self.softcap {
            Some(cap) => softcap(&scaled, cap),
            None => Ok(scaled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::halves::{differing, round};

    #[test]
    fn a_divisor_of_logits_is_what_config_says_in_halves_too() {
        let _turn = crate::device_lock::device();
        let head = HeadConfig {
            tie_word_embeddings: true,
            is_missing: false,
            bias: false,
            scale: Some(LogitScale::Over(6.0)),
            softcap: None,
        };
        assert_eq!(differing(0.31, |values| head.logits(values.clone()), |x| round(x / 6.0)), 0);
    }
}
