//! Numbers that are added to the scores of attention: they hide padding and tokens outside a window, and bias scores by distance.

use std::collections::BTreeMap;

use mlx_rs::ops::{abs, add, lt, select, subtract};
use mlx_rs::{Array, Dtype};

use super::batch::Padded;
use super::config::RelativeBias;
use crate::error::Result;
use crate::model::embedding::Embedding;
use crate::weights::Weights;

/// Hides a key. Softmax of the sum is 0, and half precision represents it. A row with only such scores remains finite.
const HIDDEN: f32 = -30_000.0;

/// The masks of a pass, one per width of a window.
pub(super) struct TextMasks(BTreeMap<Option<usize>, Option<Array>>);

impl TextMasks {
    /// Computes the masks for layers with these windows.
    pub(super) fn new(
        texts: &Padded,
        windows: impl Iterator<Item = Option<usize>>,
        bias: Option<&BiasTable>,
        dtype: Dtype,
    ) -> Result<Self> {
        let bias = bias.map(|table| table.scores(texts.length)).transpose()?;
        let padding = (!texts.are_even()).then(|| padding(texts).as_dtype(dtype)).transpose()?;
        let mut masks = BTreeMap::new();
        for window in windows {
            if masks.contains_key(&window) {
                continue;
            }
            let band = window.filter(|window| *window < texts.length);
            let band = band.map(|window| outside(texts.length, window, dtype)).transpose()?;
            let parts = [band, padding.clone(), bias.clone()];
            let sum = parts
                .into_iter()
                .flatten()
                .map(Ok::<Array, crate::Error>)
                .reduce(|sum, part| Ok(add(sum?, part?)?));
            masks.insert(window, sum.transpose()?);
        }
        Ok(Self(masks))
    }

    /// Returns the mask of a layer; `None` if its tokens see all others.
    pub(super) fn of(&self, window: Option<usize>) -> Option<&Array> {
        self.0.get(&window)?.as_ref()
    }
}

/// Hides the padding of each text, `[texts, 1, 1, length]`.
fn padding(texts: &Padded) -> Array {
    let row = |length: usize| (0..texts.length).map(move |key| if key < length { 0.0 } else { HIDDEN });
    let numbers: Vec<f32> = texts.lengths().flat_map(row).collect();
    Array::from_slice(&numbers, &[texts.count() as i32, 1, 1, texts.length as i32])
}

/// Hides tokens that are `window` or more away, `[1, 1, length, length]`. The device makes it, since it can be large.
fn outside(length: usize, window: usize, dtype: Dtype) -> Result<Array> {
    let length = length as i32;
    let places: Vec<i32> = (0..length).collect();
    let (column, row) = (Array::from_slice(&places, &[length, 1]), Array::from_slice(&places, &[length]));
    let near = lt(abs(subtract(column, row)?)?, Array::from_int(window as i32))?;
    let number = |value| Array::from_f32(value).as_dtype(dtype);
    Ok(select(near, number(0.0)?, number(HIDDEN)?)?.reshape(&[1, 1, length, length])?)
}

/// The table of biases by distance.
pub(super) struct BiasTable {
    config: RelativeBias,
    /// `[buckets, heads]`
    table: Embedding,
}

impl BiasTable {
    /// Loads `model.relative_bias`.
    pub(super) fn load(weights: &mut Weights, config: RelativeBias, heads: usize) -> Result<Self> {
        let table = Embedding::load(weights, "model.relative_bias", config.buckets, heads)?;
        Ok(Self { config, table })
    }

    /// Returns the biases of texts, `[1, heads, length, length]`.
    fn scores(&self, length: usize) -> Result<Array> {
        let length = length as i32;
        let bucket = |query: i32| (0..length).map(move |key| self.config.bucket(key - query));
        let buckets: Vec<i32> = (0..length).flat_map(bucket).collect();
        let rows = self.table.rows(&Array::from_slice(&buckets, &[length * length]))?;
        Ok(rows.reshape(&[1, length, length, -1])?.transpose_axes(&[0, 3, 1, 2])?)
    }
}

impl RelativeBias {
    /// Returns the bucket of a distance: exact up to a quarter of the buckets, then logarithmic; later keys in the second half.
    fn bucket(self, distance: i32) -> i32 {
        let half = self.buckets as i32 / 2;
        let later = if distance > 0 { half } else { 0 };
        let distance = distance.abs();
        let exact = half / 2;
        if distance < exact {
            return later + distance;
        }
        // In f32, like the reference, since the quotient is often whole.
        let ratio = (distance as f32 / exact as f32).ln() / (self.max_distance as f32 / exact as f32).ln();
        later + (exact + (ratio * (half - exact) as f32) as i32).min(half - 1)
    }
}

/// Returns numbers that hide rows in a maximum: 0 for rows in the ranges, and minus infinity for all others, `[texts, length, 1]`.
pub(super) fn except(ranges: &[std::ops::Range<usize>], length: usize) -> Array {
    let row = |range: &std::ops::Range<usize>| {
        let range = range.clone();
        (0..length).map(move |place| if range.contains(&place) { 0.0 } else { f32::NEG_INFINITY })
    };
    let numbers: Vec<f32> = ranges.iter().flat_map(row).collect();
    Array::from_slice(&numbers, &[ranges.len() as i32, length as i32, 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of the ranges of distances that share a bucket, computed by transformers.
    #[test]
    fn buckets_of_distances_equal_those_of_transformers() {
        let bias = RelativeBias { buckets: 32, max_distance: 128 };
        let ends = [
            (7, 7),
            (8, 8),
            (11, 8),
            (12, 9),
            (15, 9),
            (16, 10),
            (22, 10),
            (23, 11),
            (31, 11),
            (32, 12),
            (45, 12),
        ];
        let far = [(46, 13), (63, 13), (64, 14), (90, 14), (91, 15), (127, 15), (128, 15), (500, 15)];
        for (distance, bucket) in [(0, 0), (1, 1)].iter().chain(&ends).chain(&far) {
            assert_eq!(bias.bucket(-distance), *bucket, "{distance} tokens back");
        }
        for distance in 1..600 {
            assert_eq!(bias.bucket(distance), bias.bucket(-distance) + 16);
        }
    }
}
