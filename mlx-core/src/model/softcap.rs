//! Soft caps, which bound scores and logits smoothly.

use mlx_rs::Array;
use mlx_rs::ops::{divide, multiply, tanh};

use crate::array::scalar_like;
use crate::error::Result;

/// Computes `cap * tanh(values / cap)`; any shape to the same shape.
pub(super) fn softcap(values: &Array, cap: f32) -> Result<Array> {
    // A cap is usually a whole number, which halves represent exactly; its reciprocal is not.
    let bent = tanh(divide(values, scalar_like(cap, values)?)?)?;
    Ok(multiply(&bent, scalar_like(cap, &bent)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::halves::{differing, round};

    /// mlx-lm rounds this way. The reciprocal of the cap is no bf16, so multiplying by it changes many values.
    #[test]
    fn a_cap_is_what_config_says_in_halves_too() {
        let _turn = crate::device_lock::device();
        let other = differing(0.31, |values| softcap(values, 50.0), |x| round(round(x / 50.0).tanh()) * 50.0);
        assert!(other <= 8, "a device's tanh may round the other way now and then");
    }
}
