//! Guesses, on the device, the tokens that will be drawn from logits, so that the next pass can begin before the host draws. No draw
//! depends on a guess.

use mlx_rs::ops::indexing::{argmax_axis, put_along_axis, take_along_axis};
use mlx_rs::ops::{
    add, concatenate, cumsum, divide, exp, ge, gt, le, max_axis, minimum, multiply, select, subtract,
    sum_axis, zeros_dtype,
};
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, Dtype};

use crate::array::{Rows, host, slice_axis};
use crate::error::Result;
use crate::sampling::pending_draw::{LogitEdit, PendingDraw};

/// The number of values that f32 can sum accurately enough; a whole vocabulary is too many.
const BLOCK: i32 = 1024;

/// Token ids on the device, `[R]`.
pub(in crate::engine) struct Guess(Array);

impl Guess {
    /// Returns the likely draws from the first rows of `[R, V]`. Starts the computation without waiting for it.
    pub(in crate::engine) fn of(logits: &Rows, rows: &[PendingDraw]) -> Result<Self> {
        let logits = slice_axis(logits.array(), 0, 0, rows.len() as i32)?;
        let logits = edited(logits, rows)?;
        let best = argmax_axis(&logits, -1, false)?;
        let drawn: Vec<bool> = rows.iter().map(|row| row.random.is_some()).collect();
        let tokens = if drawn.iter().all(|drawn| !drawn) {
            best
        } else {
            select(Array::from_slice(&drawn, &[rows.len() as i32]), drawn_from(&logits, rows)?, best)?
        };
        let tokens = tokens.as_dtype(Dtype::Uint32)?;
        async_eval([&tokens])?;
        Ok(Self(tokens))
    }

    /// Returns the tokens as the input of a pass.
    pub(in crate::engine) fn array(&self) -> &Array {
        &self.0
    }

    /// Returns the token ids. Waits until they are computed.
    pub(in crate::engine) fn tokens(&self) -> Result<&[u32]> {
        host(&self.0)
    }
}

/// Applies the edits of the pending draws to the rows. All rows get the same number of edits; a row with fewer repeats one.
fn edited(logits: Array, rows: &[PendingDraw]) -> Result<Array> {
    let (count, width) = (logits.dim(0), logits.dim(1) as u32);
    let edits = rows.iter().map(|row| row.edits.iter().copied().filter(|edit| edit.token < width).collect());
    let edits: Vec<Vec<LogitEdit>> = edits.collect();
    let most = edits.iter().map(Vec::len).max().unwrap_or(0);
    if most == 0 {
        return Ok(logits);
    }
    let edits: Vec<LogitEdit> = edits
        .into_iter()
        .flat_map(|mut row| {
            let repeated = row.first().copied().unwrap_or(LogitEdit::none(0));
            row.resize(most, repeated);
            row
        })
        .collect();
    let shape = [count, most as i32];
    let numbers =
        |of: fn(&LogitEdit) -> f32| Array::from_slice(&edits.iter().map(of).collect::<Vec<f32>>(), &shape);
    let repetition = numbers(|edit| edit.repetition);
    let tokens = Array::from_slice(&edits.iter().map(|edit| edit.token).collect::<Vec<u32>>(), &shape);
    let biased = add(take_along_axis(&logits, &tokens, 1)?, numbers(|edit| edit.bias))?;
    let is_positive = gt(&biased, Array::from_f32(0.0))?;
    let repeated = select(is_positive, divide(&biased, &repetition)?, multiply(&biased, &repetition)?)?;
    let after = subtract(repeated, numbers(|edit| edit.penalty))?;
    Ok(put_along_axis(logits, tokens, after, 1)?)
}

/// Returns the tokens at the uniform random numbers. It selects a block of the vocabulary first, then the position in the block.
fn drawn_from(logits: &Array, rows: &[PendingDraw]) -> Result<Array> {
    let (count, width) = (logits.dim(0), logits.dim(1));
    let numbers = rows
        .iter()
        .map(|row| row.random.map_or([1.0, 0.0, 0.0], |random| [random.scale, random.uniform, random.floor]));
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

/// Returns the index of the first of `count` ascending sums that exceeds the target, `[R, 1]`.
fn reached(sums: &Array, target: &Array, count: i32) -> Result<Array> {
    let passed = sum_axis(le(sums, target)?.as_dtype(Dtype::Int32)?, -1, true)?;
    Ok(minimum(passed, Array::from_int(count - 1))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_lock::device;
    use crate::sampling::pending_draw::RandomDraw;

    /// Applies the rule directly, in f64.
    fn expected(logits: &[f32], row: &PendingDraw) -> u32 {
        let mut logits = logits.to_vec();
        for edit in &row.edits {
            edit.apply(&mut logits);
        }
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let Some(RandomDraw { scale, uniform, floor }) = row.random else {
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
        let mut rows = vec![PendingDraw::default()];
        for uniform in [0.0001f32, 0.2, 0.5, 0.77, 0.999] {
            rows.extend([f32::NEG_INFINITY, -1.5].map(|floor| PendingDraw {
                random: Some(RandomDraw { scale: 1.25, uniform, floor }),
                ..PendingDraw::default()
            }));
        }
        let logits: Vec<f32> =
            (0..rows.len() * width).map(|place| ((place * 7919) % 10_007) as f32 / 2000.0 - 1.0).collect();
        let array = Array::from_slice(&logits, &[rows.len() as i32, width as i32]);
        let logit_rows = Rows::new(&array).expect("rows");
        let guesses = |rows: &[PendingDraw]| {
            let guess = Guess::of(&logit_rows, rows).expect("a guess");
            let expected: Vec<u32> =
                logits.chunks(width).zip(rows).map(|(logits, row)| expected(logits, row)).collect();
            assert_eq!(guess.tokens().expect("tokens"), expected);
            expected
        };
        let plain = guesses(&rows);
        // Some rows have no edits, and some have an edit of a token outside the vocabulary.
        for (index, row) in rows.iter_mut().enumerate().filter(|it| it.0 % 4 != 3) {
            row.edits = (0..index as u32)
                .map(|it| LogitEdit {
                    token: it * 997,
                    bias: it as f32 - 2.0,
                    repetition: 1.3,
                    penalty: 0.25,
                })
                .chain([LogitEdit { token: plain[index], penalty: 9.0, ..LogitEdit::none(0) }])
                .collect();
        }
        let edited = guesses(&rows);
        assert!(plain.iter().zip(&edited).filter(|(plain, edited)| plain != edited).count() >= 6);
    }
}
