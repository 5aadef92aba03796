//! The sizes to which model families resize a picture. Sizes are `(height, width)`, as in transformers.

use crate::Error;

/// Height and width in pixels.
pub type Size = (u32, u32);

fn refuse((height, width): Size, reason: &'static str) -> Error {
    Error::Shape { width, height, reason }
}

/// `smart_resize` of Qwen's vision towers: sides are multiples of `factor` (`patch_size · merge_size`), and their
/// product is between `min_pixels` and `max_pixels` if the aspect ratio allows it.
pub fn qwen(size: Size, factor: u32, min_pixels: u64, max_pixels: u64) -> Result<Size, Error> {
    let (height, width) = (f64::from(size.0), f64::from(size.1));
    if size.0 == 0 || size.1 == 0 || factor == 0 || min_pixels == 0 || max_pixels == 0 {
        return Err(refuse(size, "sizes and limits must be at least one"));
    }
    if height.max(width) / height.min(width) > 200.0 {
        return Err(refuse(size, "one side is more than 200 times the other"));
    }
    let unit = f64::from(factor);
    // Halves round to the even multiple, as in Python.
    let rounded = |side: f64| (side / unit).round_ties_even() * unit;
    let (mut to_height, mut to_width) = (rounded(height), rounded(width));
    if to_height * to_width > max_pixels as f64 {
        let shrink = (height * width / max_pixels as f64).sqrt();
        let fitted = |side: f64| ((side / shrink / unit).floor() * unit).max(unit);
        (to_height, to_width) = (fitted(height), fitted(width));
    } else if to_height * to_width < min_pixels as f64 {
        let grow = (min_pixels as f64 / (height * width)).sqrt();
        let fitted = |side: f64| (side * grow / unit).ceil() * unit;
        (to_height, to_width) = (fitted(height), fitted(width));
    }
    // With a tiny `min_pixels`, transformers keeps a side that rounds to zero.
    if to_height < unit || to_width < unit {
        return Err(refuse(size, "a side is less than half a patch"));
    }
    Ok((to_height as u32, to_width as u32))
}

/// The rule of Pixtral and Mistral 3: the picture fits into a square of `longest_edge`, and sides are rounded up to
/// multiples of `patch` (Mistral 3: `patch_size · spatial_merge_size`).
pub fn pixtral(size: Size, longest_edge: u32, patch: u32) -> Result<Size, Error> {
    if size.0 == 0 || size.1 == 0 || longest_edge == 0 || patch == 0 {
        return Err(refuse(size, "sizes and limits must be at least one"));
    }
    let (height, width) = (f64::from(size.0), f64::from(size.1));
    let edge = f64::from(longest_edge);
    let ratio = (height / edge).max(width / edge);
    let fitted = |side: f64| if ratio > 1.0 { (side / ratio).floor() } else { side };
    let whole = |side: f64| (side as u32).div_ceil(patch).checked_mul(patch).filter(|side| *side > 0);
    match (whole(fitted(height)), whole(fitted(width))) {
        (Some(height), Some(width)) => Ok((height, width)),
        _ => Err(refuse(size, "a side shrinks to less than a pixel")),
    }
}

/// Gemma 4's rule: the largest size with the same aspect ratio and at most `max_soft_tokens · pooling_kernel_size²`
/// patches, with sides that are multiples of `patch_size · pooling_kernel_size`.
pub fn gemma4(
    size: Size,
    patch_size: u32,
    max_soft_tokens: u32,
    pooling_kernel_size: u32,
) -> Result<Size, Error> {
    let pixels = u64::from(size.0) * u64::from(size.1);
    if pixels == 0 || patch_size == 0 || max_soft_tokens == 0 || pooling_kernel_size == 0 {
        return Err(refuse(size, "sizes and limits must be at least one"));
    }
    let (height, width) = (f64::from(size.0), f64::from(size.1));
    let unit = f64::from(patch_size) * f64::from(pooling_kernel_size);
    let most = f64::from(max_soft_tokens) * unit * unit;
    let scale = (most / pixels as f64).sqrt();
    let fitted = |side: f64| (scale * side / unit).floor() * unit;
    let longest = f64::from(max_soft_tokens) * unit;
    let strip = |long: f64, short: f64| ((long / short).floor() * unit).min(longest);
    let (height, width) = match (fitted(height), fitted(width)) {
        (0.0, 0.0) => return Err(refuse(size, "both sides are less than a pooled patch")),
        (0.0, _) => (unit, strip(width, height)),
        (_, 0.0) => (strip(height, width), unit),
        sides => sides,
    };
    if height * width > most {
        return Err(refuse(size, "it has more patches than the model allows"));
    }
    Ok((height as u32, width as u32))
}
