//! A picture as patches.

use mlx_rs::Array;

use super::config::Normalization;
use crate::image::Pixels;

/// The patches of a picture in reading order, `[patches, 3 * size * size]` of f32: the rows of red, then green, then blue. The sides of the
/// picture are multiples of `size`.
pub(super) fn of(image: &Pixels, size: usize, normalization: &Normalization) -> Array {
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
            for (channel, table) in tables.iter().enumerate() {
                for row in top..top + size {
                    let start = (row * width + left) * 3;
                    let pixels = rgb[start..start + size * 3].chunks_exact(3);
                    values.extend(pixels.map(|pixel| table[usize::from(pixel[channel])]));
                }
            }
        }
    }
    let patches = (width / size) * (height / size);
    Array::from_slice(&values, &[patches as i32, (3 * size * size) as i32])
}
