//! Measures the limits of the machine: `limits`. Bytes per second read from memory by all cores, and operations per second of a large product.
//!
//! The read test is the STREAM benchmark without the writes: every core sums its own part of an array larger than any cache.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use mlx_core::Result;
use mlx_rs::ops::{arange, matmul};
use mlx_rs::{Array, Dtype};

use crate::figures::Figures;

/// Elements of an f32 array of one gigabyte.
const NUMBERS: usize = 1 << 28;
/// Streams per core. Not a power of two, because their cache lines would all map to one set: eight streams reached 0.62 and 0.53 of the rate
/// of three.
const PLACES: usize = 3;
/// Partial sums per stream; few enough that all stay in registers.
const LANES: usize = 4;
const SIDE: i32 = 2048;
const TIMES: usize = 7;

pub(crate) fn measure(_: &[String]) -> Result<Figures> {
    let mut figures = Figures::default();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let numbers: Vec<f32> = (0..NUMBERS).map(|place| (place % 7) as f32).collect();
    let read = best(|| {
        let sums = thread::scope(|scope| {
            let parts = numbers.chunks(NUMBERS.div_ceil(threads));
            let readers: Vec<_> = parts.map(|part| scope.spawn(move || sum(part))).collect();
            readers.into_iter().map(|reader| reader.join().expect("a sum")).sum::<f32>()
        });
        black_box(sums);
        Ok(())
    })?;
    figures.add("reading, GB/s", (NUMBERS * size_of::<f32>()) as f64 / read / 1e9);
    let matrix = arange::<_, f32>(None, SIDE * SIDE, None)?.sin()?.reshape(&[SIDE, SIDE])?;
    matrix.eval()?;
    let product = best(|| Ok(matmul(&matrix, &matrix)?.eval()?))?;
    figures.add("product of f32, GFLOP/s", 2.0 * f64::from(SIDE).powi(3) / product / 1e9);
    for (name, dtype) in [("f32", Dtype::Float32), ("f16", Dtype::Float16), ("bf16", Dtype::Bfloat16)] {
        for rows in [512, 1] {
            let seconds = product_of(rows, dtype)?;
            figures.add(format!("{rows} x 1024 by 1024 x 4096 in {name}, ms"), seconds * 1e3);
        }
    }
    Ok(figures)
}

/// Returns the seconds of a product of `rows` rows with a matrix in column-major order, like weights.
fn product_of(rows: i32, dtype: Dtype) -> Result<f64> {
    let made = |rows: i32| -> Result<Array> {
        let numbers = arange::<_, f32>(None, rows * 1024, None)?.sin()?;
        let matrix = numbers.reshape(&[rows, 1024])?.as_dtype(dtype)?;
        matrix.eval()?;
        Ok(matrix)
    };
    let (left, weights) = (made(rows)?, made(4096)?);
    best(|| Ok(matmul(&left, weights.t())?.eval()?))
}

/// Sums a slice. Several concurrent streams keep more of the memory system busy than one. Several partial sums avoid waiting for the
/// previous addition.
fn sum(numbers: &[f32]) -> f32 {
    let places: Vec<&[f32]> = numbers.chunks_exact(numbers.len() / PLACES).take(PLACES).collect();
    let mut sums = [[0.0_f32; LANES]; PLACES];
    for line in (0..places[0].len() / LANES).map(|line| line * LANES) {
        for (sums, place) in sums.iter_mut().zip(&places) {
            for (sum, number) in sums.iter_mut().zip(&place[line..line + LANES]) {
                *sum += number;
            }
        }
    }
    sums.iter().flatten().sum()
}

/// Returns the seconds of the fastest of some runs, because other load can only slow runs down.
fn best(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..TIMES {
        let begin = Instant::now();
        run()?;
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Ok(best)
}
