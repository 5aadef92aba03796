//! What becomes of the products of the head before they are logits.

use mlx_rs::Array;
use mlx_rs::ops::{divide, multiply};

use super::softcap::softcap;
use crate::array::scalar_like;
use crate::error::Result;

/// How logits are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadConfig {
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// True if the files have no head, as in many embedding models. The embedding replaces it, and the model generates no text.
    pub is_missing: bool,
    /// Whether a head of its own has a bias.
    pub bias: bool,
    /// The factor of logits.
    pub scale: Option<LogitScale>,
    /// Logits are bent below this: `cap * tanh(logit / cap)`.
    pub softcap: Option<f32>,
}

/// A factor as config.json has it: halves hold many a number exactly, but not its reciprocal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LogitScale {
    /// Logits are multiplied with it.
    Times(f32),
    /// Logits are divided by it.
    Over(f32),
}

impl HeadConfig {
    /// Logits `[R, vocabulary]` from the head's products, of the same shape.
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
