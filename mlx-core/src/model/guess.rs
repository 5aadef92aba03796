//! Guesses on the device of the tokens that will be drawn from logits, so that the next pass can begin before the host has drawn them. No
//! draw depends on a guess.

use mlx_rs::ops::indexing::{argmax_axis, take_along_axis};
use mlx_rs::ops::{
    add, concatenate, cumsum, exp, ge, le, max_axis, minimum, multiply, select, subtract, sum_axis,
    zeros_dtype,
};
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, Dtype};

use crate::array::{Rows, host, slice_axis};
use crate::error::Result;

/// Sums of so many numbers are exact enough in f32; a sum over a whole vocabulary is not.
const BLOCK: i32 = 1024;

/// How a row is drawn from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DrawnRow {
    /// The largest logit is drawn.
    Greedy,
    /// The place of `uniform`, in (0, 1), in the cumulative distribution of `softmax(x * scale)`, of those tokens that are no further below
    /// the largest logit than `floor`, which is negative.
    Random { scale: f32, uniform: f32, floor: f32 },
}

/// Token ids on the device, `[R]`.
pub(crate) struct Guess(Array);

impl Guess {
    /// The likely draws from the first rows of `[R, V]`. Starts to compute them and returns at once.
    pub(crate) fn of(logits: &Rows, rows: &[DrawnRow]) -> Result<Self> {
        let logits = slice_axis(logits.array(), 0, 0, rows.len() as i32)?;
        let best = argmax_axis(&logits, -1, false)?;
        let drawn: Vec<bool> = rows.iter().map(|row| matches!(row, DrawnRow::Random { .. })).collect();
        let tokens = if drawn.iter().all(|drawn| !drawn) {
            best
        } else {
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
fn drawn_from(logits: &Array, rows: &[DrawnRow]) -> Result<Array> {
    let (count, width) = (logits.dim(0), logits.dim(1));
    let numbers = rows.iter().map(|row| match *row {
        DrawnRow::Greedy => [1.0, 0.0, 0.0],
        DrawnRow::Random { scale, uniform, floor } => [scale, uniform, floor],
    });
    let numbers: Vec<[f32; 3]> = numbers.collect();
    let column = |place: usize| {
        let values: Vec<f32> = numbers.iter().map(|row| row[place]).collect();
        Array::from_slice(&values, &[count, 1])
    };
    let [scale, uniform, floor] = [0, 1, 2].map(column);
    let below = subtract(logits, max_axis(logits, -1, true)?)?;
    let none = Array::from_f32(0.0);
    let masses = exp(multiply(&below, scale)?)?;
    let masses = select(ge(&below, floor)?, masses, &none)?;
    let padding = (-width).rem_euclid(BLOCK);
    let masses = concatenate(&[masses, zeros_dtype(&[count, padding], Dtype::Float32)?], 1)?;
    let blocks = masses.reshape(&[count, -1, BLOCK])?;
    let of_block = sum_axis(&blocks, -1, false)?;
    let ends = cumsum(&of_block, 1, false, true)?;
    let last = ends.dim(1);
    let target = multiply(slice_axis(&ends, 1, last - 1, last)?, uniform)?;
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
    fn expected(logits: &[f32], row: DrawnRow) -> u32 {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let DrawnRow::Random { scale, uniform, floor } = row else {
            return logits.iter().position(|&it| it >= top).expect("it is there") as u32;
        };
        let mass = |&it: &f32| if it - top >= floor { f64::from((it - top) * scale).exp() } else { 0.0 };
        let mut left = f64::from(uniform) * logits.iter().map(mass).sum::<f64>();
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
        let mut rows = vec![DrawnRow::Greedy];
        for uniform in [0.0001f32, 0.2, 0.5, 0.77, 0.999] {
            rows.extend([f32::NEG_INFINITY, -1.5].map(|floor| DrawnRow::Random {
                scale: 1.25,
                uniform,
                floor,
            }));
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
