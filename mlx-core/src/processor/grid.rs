//! The grid of a picture: each square of pixels becomes one row.

use chat_format::Pixels;

use crate::config::Fields;
use crate::error::{Error, Result};

/// The maximum side of a square in pixels.
const MAX_SIDE: usize = 4096;

/// Reads the side of a patch in pixels from `vision`, and the side of a square in patches from `merging`.
pub(super) fn patch_and_merge(vision: &Fields, merging: &Fields) -> Result<(usize, usize)> {
    let patch = vision.optional_size("patch_size")?.unwrap_or(16);
    let merge = merging.optional_size("spatial_merge_size")?.unwrap_or(2);
    let side = patch.saturating_mul(merge);
    if side > MAX_SIDE {
        let message =
            format_args!("with patches of {patch} pixels makes {side}; at most {MAX_SIDE} are supported");
        return Err(merging.error("spatial_merge_size", message));
    }
    Ok((patch, merge))
}

/// Reads a side in pixels or patches from `key` of `vision`.
pub(super) fn bounded(vision: &Fields, key: &str, usual: usize) -> Result<usize> {
    match vision.optional_size(key)?.unwrap_or(usual) {
        size if size <= MAX_SIDE => Ok(size),
        size => Err(vision.error(key, format_args!("is {size}; at most {MAX_SIDE} are supported"))),
    }
}

/// Returns the rows and columns of a picture in squares with sides of `side` pixels.
pub(super) fn grid_of(image: &Pixels, side: u32) -> Result<(usize, usize)> {
    let (width, height) = (image.width(), image.height());
    if !width.is_multiple_of(side) || !height.is_multiple_of(side) {
        let message = format!("is {width} x {height} pixels; both must be multiples of {side}");
        return Err(Error::request("image", message));
    }
    Ok(((height / side) as usize, (width / side) as usize))
}
