//! The activation functions of feed-forward blocks.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use mlx_rs::ops::{
    add, erf, expm1, logaddexp, maximum, minimum, multiply, power, select, sigmoid, subtract, tanh,
};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use crate::array::scalar_like;
use crate::error::Result;
use crate::weights::Weights;

/// Coefficients of the logit of the normal distribution function, divided by `x`, as a polynomial of `x^2`; the highest power comes first.
/// With them, GELU is within 4e-6 of its definition.
const LOGIT_OF_PHI: [f32; 5] = [2.238_164_3e-6, -6.116_201e-5, -2.497_233e-4, 7.293_758e-2, 1.595_656_3];

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)` with the normal distribution function (Hendrycks and Gimpel, 2016, arXiv:1606.08415).
    Gelu,
    /// GELU with a hyperbolic tangent as its approximation.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`, a coarser approximation (Hendrycks and Gimpel, 2016, arXiv:1606.08415).
    QuickGelu,
    /// The square of `x` above zero, and zero below (So et al., 2021, arXiv:2109.08668).
    Relu2,
    /// A quadratic above zero and an exponential below, each with a learned factor (Huang and Schlag, 2024, arXiv:2411.13010).
    Xielu,
}

impl Activation {
    /// Returns the function that config.json calls `name`, by the names of transformers' `ACT2FN`.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "silu" | "swish" => Self::Silu,
            "gelu" | "gelu_python" => Self::Gelu,
            "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_new" | "gelu_fast" | "gelu_accurate" => {
                Self::GeluTanh
            }
            "quick_gelu" => Self::QuickGelu,
            "relu2" => Self::Relu2,
            "xielu" => Self::Xielu,
            _ => return None,
        })
    }
}

/// An activation function with its learned parameters.
pub(super) enum Activated {
    Silu,
    Gelu,
    /// GELU without the error function.
    GeluBySigmoid,
    GeluTanh,
    QuickGelu,
    Relu2,
    /// All parameters have shape `[1]`.
    Xielu {
        above: Array,
        below: Array,
        beta: Array,
        epsilon: Array,
    },
}

impl Activated {
    /// Loads the parameters of xielu from `{name}.act_fn`. The other functions have none.
    pub(super) fn load(weights: &mut Weights, name: &str, activation: Activation) -> Result<Self> {
        Ok(match activation {
            Activation::Silu => Self::Silu,
            Activation::Gelu if !weights.backend().fast_erf && weights.dtype() == Dtype::Float32 => {
                Self::GeluBySigmoid
            }
            Activation::Gelu => Self::Gelu,
            Activation::GeluTanh => Self::GeluTanh,
            Activation::QuickGelu => Self::QuickGelu,
            Activation::Relu2 => Self::Relu2,
            Activation::Xielu => xielu(weights, &format!("{name}.act_fn"))?,
        })
    }

    /// Maps any shape to the same shape.
    pub(super) fn forward(&self, input: &Array) -> Result<Array> {
        let number = |value: f32| scalar_like(value, input);
        match self {
            Self::Silu => Ok(multiply(input, sigmoid(input)?)?),
            Self::Gelu => {
                let inner = erf(multiply(input, number(FRAC_1_SQRT_2)?)?)?;
                Ok(multiply(multiply(input, number(0.5)?)?, add(inner, number(1.0)?)?)?)
            }
            Self::GeluBySigmoid => {
                let square = multiply(input, input)?;
                let [first, others @ ..] = LOGIT_OF_PHI;
                let mut factor = number(first)?;
                for coefficient in others {
                    factor = add(multiply(&square, factor)?, number(coefficient)?)?;
                }
                Ok(multiply(input, sigmoid(multiply(input, factor)?)?)?)
            }
            Self::GeluTanh => {
                let slope = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
                let inner = if input.dtype() == Dtype::Float32 {
                    // sqrt(2 / pi) (x + 0.044715 x^3) = x (a + b x^2), which avoids a power.
                    let square = multiply(input, input)?;
                    let factor = add(multiply(square, number(0.044_715 * slope)?)?, number(slope)?)?;
                    multiply(input, factor)?
                } else {
                    // Every operation on halves rounds, so these are the operations of mlx-lm. Others would lead to different tokens.
                    let cube = power(input, number(3.0)?)?;
                    multiply(add(input, multiply(cube, number(0.044_715)?)?)?, number(slope)?)?
                };
                Ok(multiply(multiply(input, number(0.5)?)?, add(tanh(inner)?, number(1.0)?)?)?)
            }
            Self::QuickGelu => Ok(multiply(input, sigmoid(multiply(input, number(1.702)?)?)?)?),
            Self::Relu2 => {
                let positive = maximum(input, number(0.0)?)?;
                Ok(multiply(&positive, &positive)?)
            }
            Self::Xielu { above, below, beta, epsilon } => {
                let right = multiply(multiply(above, input)?, input)?;
                let left = multiply(subtract(expm1(minimum(input, epsilon)?)?, input)?, below)?;
                let bent = select(input.gt(number(0.0)?)?, right, left)?;
                Ok(add(bent, multiply(beta, input)?)?)
            }
        }
    }
}

fn xielu(weights: &mut Weights, name: &str) -> Result<Activated> {
    let factor = |weights: &mut Weights, part: &str| -> Result<Array> {
        let raw = one_number(weights, &format!("{name}.{part}"))?;
        // ln(1 + e^x)
        Ok(logaddexp(&raw, scalar_like(0.0, &raw)?)?)
    };
    let above = factor(weights, "alpha_p")?;
    let below = factor(weights, "alpha_n")?;
    let constant = |weights: &mut Weights, part: &str, value: f32| -> Result<Array> {
        let full = format!("{name}.{part}");
        if weights.has(&full) { one_number(weights, &full) } else { scalar_like(value, &above) }
    };
    let beta = constant(weights, "beta", 0.5)?;
    let epsilon = constant(weights, "eps", -1e-6)?;
    let below = add(&beta, below)?;
    eval([&above, &below])?;
    Ok(Activated::Xielu { above, below, beta, epsilon })
}

/// Loads a tensor of one element. Some exports write it with shape `[1]`, others with `[]`.
fn one_number(weights: &mut Weights, name: &str) -> Result<Array> {
    let shape: &[usize] = if weights.shape(name) == Some(&[]) { &[] } else { &[1] };
    Ok(weights.take(name, shape)?.reshape(&[1])?)
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::model::halves::{differing, round};

    /// Returns `mlx.nn.gelu_approx` of a bf16, which rounds after every operation.
    fn reference(x: f64) -> f64 {
        let number = |value: f32| f64::from(bf16::from_f32(value));
        let bent = round(x + round(number(0.044_715) * round(x.powi(3))));
        let tanh = round(round(number(FRAC_2_SQRT_PI * FRAC_1_SQRT_2) * bent).tanh());
        round(0.5 * x) * round(tanh + 1.0)
    }

    #[test]
    fn gelu_without_the_error_function_is_near_its_definition() {
        let _turn = crate::device_lock::device();
        let values: Vec<f32> = (-4000..=4000).map(|place| place as f32 / 250.0).chain([-1e4, 1e4]).collect();
        let input = Array::from_slice(&values, &[values.len() as i32]);
        let compute = |activation: Activated| {
            let output = activation.forward(&input).expect("it is computed");
            crate::array::host::<f32>(&output).expect("numbers").to_vec()
        };
        let (near, defined) = (compute(Activated::GeluBySigmoid), compute(Activated::Gelu));
        let differs = |(near, defined): (&f32, &f32)| (near - defined).abs();
        let worst = near.iter().zip(&defined).map(differs).fold(0.0, f32::max);
        assert!(worst < 4e-6, "{worst}");
    }

    #[test]
    fn in_halves_the_approximated_gelu_rounds_where_the_reference_does() {
        let _turn = crate::device_lock::device();
        let other = differing(0.0213, |values| Activated::GeluTanh.forward(values), reference);
        assert!(other <= 8, "a device's tanh may round the other way now and then");
    }
}
