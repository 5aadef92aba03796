//! A picture as patches.

use mlx_rs::Array;

use super::config::Normalization;
use crate::image::Pixels;

/// The order of a patch's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The rows of red, then green, then blue.
    ByColor,
    /// The three colors of each pixel.
    ByPixel,
}

/// The patches of a picture in reading order, `[patches, 3 * size * size]` of f32. The sides of the picture are multiples of `size`.
pub(super) fn of(image: &Pixels, size: usize, normalization: &Normalization, order: Order) -> Array {
    let Normalization { image_mean, image_std } = normalization;
    let tables: Vec<Vec<f32>> = image_mean
        .iter()
        .zip(image_std)
        .map(|(mean, std)| {
            // transformers rounds to f32 after each of the two steps.
            let scaled = |byte: u8| f64::from((f64::from(byte) / 255.0) as f32);
            (0..=u8::MAX).map(|byte| ((scaled(byte) - mean) / std) as f32).collect()
        })
        .collect();
    let (width, height, rgb) = (image.width() as usize, image.height() as usize, image.rgb());
    let mut values = Vec::with_capacity(rgb.len());
    for top in (0..height).step_by(size) {
        for left in (0..width).step_by(size) {
            let rows = (top..top + size).map(|row| {
                let start = (row * width + left) * 3;
                rgb[start..start + size * 3].chunks_exact(3)
            });
            match order {
                Order::ByColor => {
                    for (channel, table) in tables.iter().enumerate() {
                        let pixels = rows.clone().flatten();
                        values.extend(pixels.map(|pixel| table[usize::from(pixel[channel])]));
                    }
                }
                Order::ByPixel => {
                    let colors = rows.flatten().flat_map(|pixel| pixel.iter().zip(&tables));
                    values.extend(colors.map(|(byte, table)| table[usize::from(*byte)]));
                }
            }
        }
    }
    let patches = (width / size) * (height / size);
    Array::from_slice(&values, &[patches as i32, (3 * size * size) as i32])
}
