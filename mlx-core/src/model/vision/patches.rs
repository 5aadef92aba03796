//! The patches of a picture, and squares of patches.

use chat_format::Pixels;
use mlx_rs::Array;

use super::config::Normalization;
use super::footprint::Shape;
use crate::error::Result;
use crate::weights::Weights;

/// The order of a patch's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// All reds, then all greens, then all blues.
    ByColor,
    /// The three colors of each pixel.
    ByPixel,
}

/// Returns the patches of a picture in reading order, `[patches, 3 * size * size]` of f32. Its sides must be multiples of `size`.
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

/// Loads the matrix of Qwen's patches, `[3 * patch_size^2, hidden]`. A picture is repeated for all frames, so the kernels of the frames are
/// summed. PyTorch puts colors before frames, rows and columns; MLX puts them last.
pub(super) fn frame_kernel(weights: &mut Weights, name: &str, shape: &Shape, frames: usize) -> Result<Array> {
    let Shape { hidden_size: hidden, patch_size: size, .. } = *shape;
    let first = [hidden, 3, frames, size, size];
    let kernel = if weights.shape(name) == Some(&first[..]) {
        weights.take(name, &first)?
    } else {
        weights.take(name, &[hidden, frames, size, size, 3])?.transpose_axes(&[0, 4, 1, 2, 3])?
    };
    let kernel = kernel.sum_axis(2, false)?.reshape(&[hidden as i32, -1])?.swap_axes(0, 1)?;
    kernel.eval()?;
    Ok(kernel)
}

/// Maps `[patches, width]` of a grid of rows and columns to `[squares, side * side * width]`.
pub(super) fn squares(patches: &Array, (rows, columns): (usize, usize), side: i32) -> Result<Array> {
    let width = patches.dim(1);
    let (rows, columns) = (rows as i32 / side, columns as i32 / side);
    let grid = patches.reshape(&[rows, side, columns, side, width])?;
    Ok(grid.transpose_axes(&[0, 2, 1, 3, 4])?.reshape(&[rows * columns, width * side * side])?)
}
