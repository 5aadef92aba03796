//! The arithmetic of sampling. It gives the same bits on every machine, and is fast enough for a whole vocabulary.

/// Computes `exp(x)` for `x <= 0` with a relative error below 3e-7. Returns 0 below -87, where f32 would be denormal.
///
/// The `expf` of platforms differs in the last bit, which occasionally changes a token. This function uses only IEEE additions and
/// multiplications: `x = n ln 2 + r` with `|r| <= ln 2 / 2` (two-part reduction of Cody and Waite), then the Taylor polynomial of
/// degree 7 of `exp(r)`. The next term is below 6e-9.
#[inline]
pub(crate) fn exp(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer without a branch.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = clamped - whole * LN_2_HIGH - whole * LN_2_LOW;
    let mut sum = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * rest + coefficient;
    }
    // The low bits of `shifted` hold the integer. Moved into the exponent, they give the power of two.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x > -87.0 { sum * power } else { 0.0 }
}

/// The number of independent partial sums, which a processor can add in parallel without changing the result.
const LANES: usize = 16;
/// The number of values in a block. A lane adds few enough of them for f32.
const BLOCK: usize = 1024;

/// Returns the largest value; minus infinity for an empty row. Ignores NaN.
pub(crate) fn largest(row: &[f32]) -> f32 {
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, |best, value| if value > best { value } else { best })
}

/// Sums `exp((x - top) * scale)` over one block of at most [`BLOCK`] values.
fn block_mass(block: &[f32], top: f32, scale: f32) -> f64 {
    sum_of_block(block, |value| exp((value - top) * scale))
}

/// Sums a function of the values of a block, in separate lanes.
fn sum_of_block(block: &[f32], of: impl Fn(f32) -> f32) -> f64 {
    let (chunks, rest) = block.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += of(value);
        }
    }
    lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>()
        + rest.iter().map(|&value| f64::from(of(value))).sum::<f64>()
}

/// Sums `exp(x - top)` over the row. `top` is its largest value.
pub(crate) fn mass(row: &[f32], top: f32) -> f64 {
    row.chunks(BLOCK).map(|block| block_mass(block, top, 1.0)).sum()
}

/// Returns the sum of [`mass`]. Passes the logits and their exponentials to `each`, block by block.
pub(crate) fn mass_by_value(row: &[f32], top: f32, mut each: impl FnMut(&[f32], &[f32])) -> f64 {
    let mut masses = [0.0f32; BLOCK];
    let of_block = |block: &[f32]| {
        let masses = &mut masses[..block.len()];
        for (mass, &value) in masses.iter_mut().zip(block) {
            *mass = exp(value - top);
        }
        each(block, masses);
        sum_of_block(masses, |mass| mass)
    };
    row.chunks(BLOCK).map(of_block).sum()
}

/// Returns the natural logarithm of the sum of `exp(x)` over the row. `top` is its largest value.
pub(crate) fn log_sum_exp(row: &[f32], top: f32) -> f64 {
    f64::from(top) + mass(row, top).ln()
}

/// Returns the index at `uniform` in the cumulative distribution of `softmax(x * scale)`, in the order of the row. Indices without mass
/// are never chosen. `top` is the largest value; `blocks` is scratch space.
pub(crate) fn place(row: &[f32], top: f32, scale: f32, uniform: f64, blocks: &mut Vec<f64>) -> usize {
    blocks.clear();
    blocks.extend(row.chunks(BLOCK).map(|block| block_mass(block, top, scale)));
    let mut target = uniform * blocks.iter().sum::<f64>();
    let mut chosen = 0;
    for (index, &mass) in blocks.iter().enumerate() {
        if mass > 0.0 {
            chosen = index;
            if target < mass {
                break;
            }
            target -= mass;
        }
    }
    let start = chosen * BLOCK;
    let mut last = start;
    for (place, &value) in (start..).zip(&row[start..row.len().min(start + BLOCK)]) {
        let mass = f64::from(exp((value - top) * scale));
        if mass > 0.0 {
            last = place;
            if target < mass {
                break;
            }
            target -= mass;
        }
    }
    last
}

/// Computes `base^exponent` by squaring.
pub(crate) fn power(base: f32, mut exponent: u32) -> f32 {
    let (mut result, mut square) = (1.0f32, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        exponent >>= 1;
        if exponent > 0 {
            square *= square;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_f32() {
        let mut worst = 0.0f64;
        for step in 0..870_000 {
            let x = -(step as f32) / 10_000.0;
            let expected = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - expected).abs() / expected);
        }
        assert!(worst < 3e-7, "{worst:e}");
        assert_eq!((exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn sums_of_a_row_agree_with_the_plain_way() {
        let row: Vec<f32> = (0..5000).map(|place| ((place * 7919) % 5003) as f32 / 300.0 - 8.0).collect();
        let top = largest(&row);
        assert_eq!(top.to_bits(), row.iter().copied().fold(f32::NEG_INFINITY, f32::max).to_bits());
        let sum: f64 = row.iter().map(|&value| f64::from(value).exp()).sum();
        assert!((log_sum_exp(&row, top) - sum.ln()).abs() < 1e-6);
        let mut seen = Vec::new();
        let sum = mass_by_value(&row, top, |values, masses| {
            seen.extend(values.iter().copied().zip(masses.iter().copied()));
        });
        assert_eq!(sum.to_bits(), mass(&row, top).to_bits());
        let of_each = row.iter().map(|&value| (value, exp(value - top)));
        assert_eq!(seen, of_each.collect::<Vec<_>>());
    }

    #[test]
    fn places_follow_the_cumulative_distribution() {
        let row: Vec<f32> =
            (0..3000).map(|place| if place % 3 == 0 { f32::NEG_INFINITY } else { 0.0 }).collect();
        let mut blocks = Vec::new();
        for step in 0..2000 {
            let uniform = (f64::from(step) + 0.5) / 2000.0;
            let chosen = place(&row, 0.0, 1.0, uniform, &mut blocks);
            assert_eq!(chosen, step as usize / 2 * 3 + 1 + step as usize % 2);
        }
    }

    #[test]
    fn powers_are_products() {
        assert_eq!((power(1.75, 0), power(2.0, 10), power(3.0, 5)), (1.0, 1024.0, 243.0));
    }
}
