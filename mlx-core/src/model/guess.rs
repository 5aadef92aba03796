//! Guesses on the device of the tokens that will be drawn from logits, so that the next pass can begin before the host has drawn them. No
//! draw depends on a guess.

use mlx_rs::ops::indexing::{argmax_axis, take_along_axis};
use mlx_rs::ops::{
    add, concatenate, cumsum, exp, ge, le, max_axis, minimum, multiply, select, subtract, sum_axis, zeros_dtype,
};
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, Dtype};

use crate::array::{Rows, host, slice_axis};
use crate::error::Result;

/// Sums of so many numbers are exact enough in f32; a sum over a whole vocabulary is not.
const BLOCK: i32 = 1024;

/// How a row is drawn from: the place of `uniform` in the cumulative distribution of `softmax(x * scale)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrawnRow {
    /// 1 over the temperature.
    pub(crate) scale: f32,
    /// In (0, 1).
    pub(crate) uniform: f32,
    /// Tokens that are further below the largest logit than this are left out; minus infinity for none.
    pub(crate) floor: f32,
}

/// Token ids on the device, `[R]`.
pub(crate) struct Guess(Array);

impl Guess {
    /// The likely draws from the first rows of `[R, V]`; `None` draws the largest logit. Starts to compute them and returns at once.
    pub(crate) fn of(logits: &Rows, rows: &[Option<DrawnRow>]) -> Result<Self> {
        let logits = slice_axis(logits.array(), 0, 0, rows.len() as i32)?;
        let best = argmax_axis(&logits, -1, false)?;
        let tokens = if rows.iter().all(Option::is_none) {
            best
        } else {
            let drawn: Vec<bool> = rows.iter().map(Option::is_some).collect();
            select(Array::from_slice(&drawn, &[rows.len() as i32]), drawn_from(&logits, rows)?, best)?
        };
        let tokens = tokens.as_dtype(Dtype::Uint32)?;
        async_eval([&tokens])?;
        Ok(Self(tokens))
    }

    /// As the input of a pass.
    pub(crate) fn array(&self) -> &Array {
        &self.0
    }

    /// The token ids; waits until they are computed.
    pub(crate) fn tokens(&self) -> Result<&[u32]> {
        host(&self.0)
    }
}

/// The tokens at the uniform numbers, in two steps: a block of the vocabulary, and the place in it.
fn drawn_from(logits: &Array, rows: &[Option<DrawnRow>]) -> Result<Array> {
    let (count, width) = (logits.dim(0), logits.dim(1));
    let column = |of: fn(&DrawnRow) -> f32| {
        let values: Vec<f32> = rows.iter().map(|row| row.as_ref().map_or(0.0, of)).collect();
        Array::from_slice(&values, &[count, 1])
    };
    let below = subtract(logits, max_axis(logits, -1, true)?)?;
    let none = Array::from_f32(0.0);
    let masses = exp(multiply(&below, column(|row| row.scale))?)?;
    let masses = select(ge(&below, column(|row| row.floor))?, masses, &none)?;
    let padding = (-width).rem_euclid(BLOCK);
    let masses = concatenate(&[masses, zeros_dtype(&[count, padding], Dtype::Float32)?], 1)?;
    let blocks = masses.reshape(&[count, -1, BLOCK])?;
    let of_block = sum_axis(&blocks, -1, false)?;
    let ends = cumsum(&of_block, 1, false, true)?;
    let last = ends.dim(1);
    let target = multiply(slice_axis(&ends, 1, last - 1, last)?, column(|row| row.uniform))?;
    let block = reached(&ends, &target, last)?;
    let begin = take_along_axis(subtract(&ends, &of_block)?, &block, 1)?;
    let inside = take_along_axis(&blocks, block.reshape(&[count, 1, 1])?, 1)?.reshape(&[count, BLOCK])?;
    let place = reached(&cumsum(inside, 1, false, true)?, &subtract(target, begin)?, BLOCK)?;
    let token = add(multiply(block, Array::from_int(BLOCK))?, place)?;
    Ok(minimum(token, Array::from_int(width - 1))?.reshape(&[count])?)
}

/// The first of `count` rising sums that is above the target, `[R, 1]`.
fn reached(sums: &Array, target: &Array, count: i32) -> Result<Array> {
    let passed = sum_axis(le(sums, target)?.as_dtype(Dtype::Int32)?, -1, true)?;
    Ok(minimum(passed, Array::from_int(count - 1))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_lock::device;

    /// The rule itself, in f64.
    fn expected(logits: &[f32], row: Option<DrawnRow>) -> u32 {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let Some(row) = row else { return logits.iter().position(|&it| it == top).expect("it is there") as u32 };
        let mass = |&it: &f32| if it - top >= row.floor { f64::from((it - top) * row.scale).exp() } else { 0.0 };
        let mut left = f64::from(row.uniform) * logits.iter().map(mass).sum::<f64>();
        let passed = |it: &f32| {
            left -= mass(it);
            left < 0.0
        };
        logits.iter().position(passed).expect("the sum is reached") as u32
    }

    #[test]
    fn a_guess_is_what_the_rule_draws() {
        let _turn = device();
        let width = 5000;
        let uniforms = [0.0001f32, 0.2, 0.5, 0.77, 0.999];
        let floors = [f32::NEG_INFINITY, -1.5];
        let mut rows = vec![None];
        for uniform in uniforms {
            rows.extend(floors.map(|floor| Some(DrawnRow { scale: 1.25, uniform, floor })));
        }
        let logits: Vec<f32> =
            (0..rows.len() * width).map(|place| ((place * 7919) % 10_007) as f32 / 2000.0).collect();
        let array = Array::from_slice(&logits, &[rows.len() as i32, width as i32]);
        let guess = Guess::of(&Rows::new(&array).expect("rows"), &rows).expect("a guess");
        let expected: Vec<u32> =
            logits.chunks(width).zip(&rows).map(|(logits, row)| expected(logits, *row)).collect();
        assert_eq!(guess.tokens().expect("tokens"), expected);
    }
}
