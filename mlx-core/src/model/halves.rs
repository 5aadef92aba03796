//! Helpers of unit tests that check if an operation on halves rounds as its reference does.

use half::bf16;
use mlx_rs::{Array, Dtype};

use crate::array::Rows;
use crate::error::Result;

/// Rounds to the nearest bf16.
pub(super) fn round(value: f64) -> f64 {
    f64::from(bf16::from_f64(value))
}

/// Counts differences between `ours` and `reference` for 400 values around zero, `pace` apart. `reference` computes one value, and its
/// result is rounded to bf16.
pub(super) fn differing(
    pace: f32,
    ours: impl Fn(&Array) -> Result<Array>,
    reference: impl Fn(f64) -> f64,
) -> usize {
    let inputs: Vec<bf16> = (-200..200).map(|place| bf16::from_f32(place as f32 * pace)).collect();
    let single: Vec<f32> = inputs.iter().map(|input| input.to_f32()).collect();
    let halves = Array::from_slice(&single, &[1, 400]).as_dtype(Dtype::Bfloat16).expect("a float");
    let rows = Rows::new(&ours(&halves).expect("it has a form")).expect("it has a form");
    let values = rows.values().expect("it is computed");
    let other =
        |(input, value): &(&bf16, &f32)| bf16::from_f64(reference(input.to_f64())) != bf16::from_f32(**value);
    inputs.iter().zip(values).filter(other).count()
}
