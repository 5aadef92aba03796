//! The head of a cross-encoder: one or two layers from a pooled state to logits.

use mlx_rs::Array;
use mlx_rs::ops::tanh;

use super::config::{ClassifierConfig, ClassifierDense};
use crate::error::Result;
use crate::model::activation::Activated;
use crate::model::linear::{Linear, Part};
use crate::model::norm::{Norm, NormConfig};
use crate::weights::Weights;

/// The head with its weights.
pub(super) struct Classifier {
    dense: Option<Dense>,
    output: Linear,
}

struct Dense {
    linear: Linear,
    /// `None` for the hyperbolic tangent.
    activation: Option<Activated>,
    norm: Option<Norm>,
}

impl Classifier {
    /// Loads the layers of the head, for hidden states of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        config: &ClassifierConfig,
        hidden: usize,
        norm: NormConfig,
    ) -> Result<Self> {
        let dense = |dense: &ClassifierDense| -> Result<Dense> {
            let ClassifierDense { name, bias, activation, norm: norm_name } = *dense;
            let activation = activation.map(|it| Activated::load(weights, name, it)).transpose()?;
            Ok(Dense {
                linear: Linear::load(weights, &[Part { name, outputs: hidden }], hidden, bias)?,
                activation,
                norm: norm_name.map(|name| Norm::load(weights, name, hidden, norm)).transpose()?,
            })
        };
        let dense = config.dense.as_ref().map(dense).transpose()?;
        let part = Part { name: config.output, outputs: config.labels };
        Ok(Self { dense, output: Linear::load(weights, &[part], hidden, true)? })
    }

    /// Maps `[texts, hidden]` to `[texts, labels]`.
    pub(super) fn forward(&self, pooled: &Array) -> Result<Array> {
        let Some(Dense { linear, activation, norm }) = &self.dense else {
            return self.output.forward(pooled);
        };
        let middle = linear.forward(pooled)?;
        let middle = match activation {
            None => tanh(&middle)?,
            Some(activation) => activation.forward(&middle)?,
        };
        let middle = norm.as_ref().map_or(Ok(middle.clone()), |norm| norm.forward(&middle))?;
        self.output.forward(&middle)
    }
}
