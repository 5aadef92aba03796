//! LFM2-VL's processor: a large picture becomes a grid of tiles, each after a token with its row and column, and the whole picture in a
//! smaller size.

use std::path::Path;

use chat_format::Pixels;
use chat_format::text::Tokenizer;
use mlx_image::sizes::Size;
use mlx_image::tiles::TileRule;

use super::files::{self, SizeLimit};
use super::grid;
use super::resized::ResizedPicture;
use crate::config::Fields;
use crate::error::{Error, Result};

/// The maximum number of tiles in a config.
const MAX_TILES: usize = 64;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Lfm2 {
    rule: TileRule,
    max_image_tokens: SizeLimit,
    min_image_tokens: SizeLimit,
    tile_size: SizeLimit,
    /// True if the whole picture follows the tiles.
    pub(super) use_thumbnail: bool,
    markers: Option<Markers>,
}

/// The rows and columns of tiles, and the size of all tiles together.
type TileGrid = ((u32, u32), Size);

/// The tokens around the parts of a picture.
#[derive(Debug, Clone, PartialEq)]
struct Markers {
    start: u32,
    end: u32,
    thumbnail: u32,
    /// The token of each tile, by its row and column from 0.
    tiles: Vec<Vec<u32>>,
}

impl Lfm2 {
    pub(super) fn read(
        folder: &Path,
        config: &Fields,
        vision: &Fields,
        settings: Option<&Fields>,
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let patch = grid::bounded(vision, "patch_size", 16)?;
        let factor = grid::bounded(config, "downsample_factor", 2)?;
        if let Some(settings) = settings {
            files::expect_size(settings, "encoder_patch_size", patch)?;
            files::expect_size(settings, "downsample_factor", factor)?;
        }
        let limit = |key: &str, usual: u64| {
            let given = settings.map(|settings| SizeLimit::read(settings, key)).transpose()?.flatten();
            Ok::<_, Error>(given.unwrap_or_else(|| SizeLimit::usual(key, usual)))
        };
        let (least, most) = (limit("min_image_tokens", 64)?, limit("max_image_tokens", 256)?);
        let tile = limit("tile_size", 512)?;
        let side = (patch * factor) as u64;
        let wrong = |key: &str, message: String| match settings {
            Some(settings) => settings.error(key, message),
            None => config.error(key, message),
        };
        if !tile.value.is_multiple_of(side) {
            return Err(wrong("tile_size", format!("is {}; it must be a multiple of {side}", tile.value)));
        }
        let [min_tiles, max_tiles] = [("min_tiles", 2), ("max_tiles", 10)].map(|(key, usual)| {
            Ok::<_, Error>(settings.map(|it| it.optional_size(key)).transpose()?.flatten().unwrap_or(usual))
        });
        let (min_tiles, max_tiles) = (min_tiles?, max_tiles?);
        let divides = flag(settings, "do_image_splitting")? && (min_tiles, max_tiles) != (1, 1);
        if divides && !(2..=max_tiles).contains(&min_tiles) {
            return Err(wrong(
                "min_tiles",
                format!("is {min_tiles}; it must be from 2 to max_tiles, {max_tiles}"),
            ));
        }
        if max_tiles > MAX_TILES {
            return Err(wrong("max_tiles", format!("is {max_tiles}; at most {MAX_TILES} are supported")));
        }
        let tolerance = settings.map(|settings| settings.optional_positive("max_pixels_tolerance"));
        let rule = TileRule {
            factor: side as u32,
            patch_size: patch as u32,
            min_image_tokens: clamped(least.value),
            max_image_tokens: clamped(most.value),
            tile_size: clamped(tile.value),
            min_tiles: min_tiles as u32,
            max_tiles: if divides { max_tiles as u32 } else { 1 },
            max_pixels_tolerance: tolerance.transpose()?.flatten().unwrap_or(2.0),
        };
        let marks = files::processor(folder)?.map(|it| it.optional_flag("use_image_special_tokens"));
        let marks = marks.transpose()?.flatten().unwrap_or(true);
        let markers = marks.then(|| Markers::read(folder, tokenizer, rule.max_tiles)).transpose()?;
        let use_thumbnail = flag(settings, "use_thumbnail")?;
        Ok(Self {
            rule,
            max_image_tokens: most,
            min_image_tokens: least,
            tile_size: tile,
            use_thumbnail,
            markers,
        })
    }

    /// Returns the size of the whole picture.
    pub(super) fn size(&self, size: Size) -> Result<Size, mlx_image::Error> {
        let whole = self.rule.whole(size)?;
        let grows = u64::from(whole.0) * u64::from(whole.1) > u64::from(size.0) * u64::from(size.1);
        let limit = if grows { &self.min_image_tokens } else { &self.max_image_tokens };
        limit.bound(whole)
    }

    /// Returns the rows and columns of tiles, and the size of all tiles together; `None` for a picture without tiles.
    pub(super) fn tiles(&self, size: Size) -> Result<Option<TileGrid>, mlx_image::Error> {
        let Some((rows, columns)) = self.rule.grid(size)? else { return Ok(None) };
        let pixels = |tiles: u32| tiles.saturating_mul(self.rule.tile_size);
        Ok(Some(((rows, columns), self.tile_size.bound((pixels(rows), pixels(columns)))?)))
    }

    /// Returns the rows and columns of a part of a picture.
    pub(super) fn grid(&self, part: &Pixels) -> Result<(usize, usize)> {
        grid::grid_of(part, self.rule.factor)
    }

    /// Returns the tokens of a picture.
    pub(super) fn tokens(&self, picture: &ResizedPicture, image_token: u32) -> Result<Vec<u32>> {
        let markers = self.markers.as_ref();
        let mut tokens: Vec<u32> = markers.map(|markers| markers.start).into_iter().collect();
        for (index, part) in picture.parts.iter().enumerate() {
            if let (Some((rows, columns)), Some(markers)) = (picture.tiles, markers) {
                let (row, column) = (index / columns, index % columns);
                tokens.push(if row < rows { markers.tiles[row][column] } else { markers.thumbnail });
            }
            let (rows, columns) = self.grid(part)?;
            tokens.extend(std::iter::repeat_n(image_token, rows * columns));
        }
        tokens.extend(markers.map(|markers| markers.end));
        Ok(tokens)
    }
}

impl Markers {
    /// Finds the tokens of all grids of up to `max_tiles` tiles.
    fn read(folder: &Path, tokenizer: &Tokenizer, max_tiles: u32) -> Result<Self> {
        let token = |text: &str| {
            let missing = || format!("lacks the token {text}, which prompts with images need");
            tokenizer.id(text).ok_or_else(|| Error::file(folder.join("tokenizer.json"), missing()))
        };
        let row = |row: u32| {
            let tile = |column: u32| token(&format!("<|img_row_{row}_col_{column}|>"));
            (1..=max_tiles / row).map(tile).collect::<Result<Vec<u32>>>()
        };
        let divides = max_tiles > 1;
        Ok(Self {
            start: token("<|image_start|>")?,
            end: token("<|image_end|>")?,
            thumbnail: if divides { token("<|img_thumbnail|>")? } else { 0 },
            tiles: if divides { (1..=max_tiles).map(row).collect::<Result<_>>()? } else { Vec::new() },
        })
    }
}

/// Reads a flag that is true by default.
fn flag(settings: Option<&Fields>, key: &str) -> Result<bool> {
    let given = settings.map(|settings| settings.optional_flag(key)).transpose()?.flatten();
    Ok(given.unwrap_or(true))
}

fn clamped(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
