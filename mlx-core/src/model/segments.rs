//! The decay between any two rows of a block.

use mlx_rs::Array;
use mlx_rs::ops::{exp, select};

use crate::error::Result;

/// Returns the product of the decays between any two rows of a block. The input, `[.., rows, D]`, has the logarithm of each row's decay.
/// In the result, `[.., rows, rows, D]`, element `[i, j]` is the share of row `j` that remains at row `i`; it is 0 if `j` is later. Each is
/// the exponential of a sum over the rows between: a difference of two longer sums would lose the digits of slow decays after fast ones.
pub(super) fn segment_decay(log_decay: &Array) -> Result<Array> {
    let rows = log_decay.dim(-2);
    let own = log_decay.expand_dims(-2)?;
    let axis = own.ndim() as i32 - 3;
    let sums = select(before(rows, false), own, Array::from_f32(0.0))?.cumsum(axis, false, true)?;
    Ok(exp(select(before(rows, true), sums, Array::from_f32(f32::NEG_INFINITY))?)?)
}

/// Returns a mask `[rows, rows, 1]`: true if the column is before the row, or equal to it with `own`.
fn before(rows: i32, own: bool) -> Array {
    let row = |row: i32| (0..rows).map(move |column| column < row || own && column == row);
    let mask: Vec<bool> = (0..rows).flat_map(row).collect();
    Array::from_slice(&mask, &[rows, rows, 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::host;

    #[test]
    fn slow_decays_keep_their_digits_behind_fast_ones() {
        let _turn = crate::device_lock::device();
        let decays = [-3000.0_f32, -0.001, -0.002];
        let kept = segment_decay(&Array::from_slice(&decays, &[3, 1])).expect("it is computed");
        kept.eval().expect("it is computed");
        let rows = host::<f32>(&kept).expect("floats").to_vec();
        let exact =
            [1.0, 0.0, 0.0, (-0.001_f32).exp(), 1.0, 0.0, (-0.003_f32).exp(), (-0.002_f32).exp(), 1.0];
        assert!(rows.iter().zip(exact).all(|(value, exact)| (value - exact).abs() < 1e-7), "{rows:?}");
    }
}
