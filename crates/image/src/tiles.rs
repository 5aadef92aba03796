//! The sizes to which LFM2-VL resizes a picture: one size for a small picture, a grid of square tiles for a large one.

use crate::Error;
use crate::sizes::Size;

/// The limits of LFM2-VL's processor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TileRule {
    /// The side of a square of pixels that becomes one token.
    pub factor: u32,
    /// The side of a patch in pixels.
    pub patch_size: u32,
    /// The smallest number of tokens of a whole picture.
    pub min_image_tokens: u32,
    /// The largest number of tokens of a whole picture.
    pub max_image_tokens: u32,
    /// The side of a tile in pixels.
    pub tile_size: u32,
    /// The smallest number of tiles.
    pub min_tiles: u32,
    /// The largest number of tiles; with 1, no picture is divided.
    pub max_tiles: u32,
    /// A picture with this many times the pixels of `max_image_tokens` is divided.
    pub max_pixels_tolerance: f64,
}

impl TileRule {
    /// Returns the size of the whole picture: sides are multiples of `factor`, and the tokens are within the limits if the aspect ratio
    /// allows it.
    pub fn whole(&self, size: Size) -> Result<Size, Error> {
        let (height, width) = self.sides(size)?;
        let unit = f64::from(self.factor);
        let pixels = |tokens: u32| f64::from(tokens) * unit * unit;
        let (least, most) = (pixels(self.min_image_tokens), pixels(self.max_image_tokens));
        let (mut to_height, mut to_width) = (self.rounded(height).max(unit), self.rounded(width).max(unit));
        if to_height * to_width > most {
            let shrink = (height * width / most).sqrt();
            let fitted = |side: f64| ((side / shrink / unit).floor() * unit).max(unit);
            (to_height, to_width) = (fitted(height), fitted(width));
        } else if to_height * to_width < least {
            let grow = (least / (height * width)).sqrt();
            let fitted = |side: f64| (side * grow / unit).ceil() * unit;
            (to_height, to_width) = (fitted(height), fitted(width));
        }
        Ok((to_height as u32, to_width as u32))
    }

    /// Returns the rows and columns of tiles; `None` if the picture is not divided.
    pub fn grid(&self, size: Size) -> Result<Option<(u32, u32)>, Error> {
        let (height, width) = self.sides(size)?;
        if self.max_tiles == 1 {
            return Ok(None);
        }
        let (unit, patch) = (f64::from(self.factor), f64::from(self.patch_size));
        let area = self.rounded(height).max(patch) * self.rounded(width).max(patch);
        let most = f64::from(self.max_image_tokens) * unit * unit * self.max_pixels_tolerance;
        Ok((area > most).then(|| self.closest(height, width)))
    }

    /// Returns the grid with the closest aspect ratio. Of equally close ones it is the largest that the picture half fills.
    fn closest(&self, height: f64, width: f64) -> (u32, u32) {
        let tile = f64::from(self.tile_size) * f64::from(self.tile_size);
        let (mut best, mut difference) = ((1, 1), f64::INFINITY);
        for tiles in self.min_tiles..=self.max_tiles {
            for columns in (1..=tiles).filter(|columns| tiles.is_multiple_of(*columns)) {
                let rows = tiles / columns;
                let other = (width / height - f64::from(columns) / f64::from(rows)).abs();
                let fills = height * width > 0.5 * tile * f64::from(tiles);
                if other < difference || other <= difference && fills {
                    (best, difference) = ((rows, columns), other);
                }
            }
        }
        best
    }

    /// Rounds to a multiple of `factor`. Halves round to the even multiple, as in Python.
    fn rounded(&self, side: f64) -> f64 {
        let unit = f64::from(self.factor);
        (side / unit).round_ties_even() * unit
    }

    fn sides(&self, (height, width): Size) -> Result<(f64, f64), Error> {
        let limits =
            [self.factor, self.min_image_tokens, self.max_image_tokens, self.tile_size, self.min_tiles];
        if height == 0 || width == 0 || limits.contains(&0) {
            return Err(Error::Shape { width, height, reason: "sizes and limits must be at least one" });
        }
        Ok((f64::from(height), f64::from(width)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults of transformers.
    const RULE: TileRule = TileRule {
        factor: 32,
        patch_size: 16,
        min_image_tokens: 64,
        max_image_tokens: 256,
        tile_size: 512,
        min_tiles: 2,
        max_tiles: 10,
        max_pixels_tolerance: 2.0,
    };

    /// The expected sizes and grids are those of transformers' `smart_resize` and `_get_grid_layout`.
    #[test]
    fn sizes_and_grids_are_those_of_transformers() {
        for (size, whole, grid) in CASES {
            assert_eq!(RULE.whole(size).expect("a size"), whole, "{size:?}");
            assert_eq!(RULE.grid(size).expect("a grid"), grid, "{size:?}");
        }
    }

    /// The sizes of a picture and of the resized whole picture, and the rows and columns of its tiles.
    type Case = (Size, Size, Option<(u32, u32)>);

    const CASES: [Case; 13] = [
        ((1, 1), (256, 256), None),
        ((16, 300), (64, 1120), None),
        ((240, 320), (256, 320), None),
        ((512, 512), (512, 512), None),
        ((720, 512), (576, 416), None),
        ((700, 760), (480, 512), Some((2, 2))),
        ((1080, 1920), (384, 672), Some((2, 4))),
        ((3000, 4000), (416, 576), Some((2, 3))),
        ((4000, 900), (1056, 224), Some((5, 1))),
        ((48, 4096), (64, 4096), None),
        ((1448, 724), (704, 352), Some((2, 1))),
        ((1000, 10000), (160, 1600), Some((1, 10))),
        ((1023, 1024), (480, 512), Some((2, 2))),
    ];

    #[test]
    fn an_empty_picture_and_empty_limits_are_refused() {
        assert!(RULE.whole((0, 5)).is_err());
        assert!(TileRule { factor: 0, ..RULE }.grid((5, 5)).is_err());
    }
}
