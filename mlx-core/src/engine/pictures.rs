//! The pictures of a prompt: the positions of their rows, and the keys by which prompts are compared.

mod encoder_cache;
mod least_recently_used;

use std::ops::Range;

use chat_format::Pixels;

pub(in crate::engine) use self::encoder_cache::EncoderCache;
use crate::engine::schedule::undivided::Undivided;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::processor::{NoImages, Processor};

/// The pictures of a prompt, in order.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct Pictures {
    images: Vec<Pixels>,
    /// The end of each picture's rows among the rows of all pictures.
    ends: Vec<usize>,
    /// The position of every row in the prompt, in ascending order.
    positions: Vec<usize>,
    /// Rows and columns of each picture, for models with positions in height and width; empty for other models.
    grids: Vec<(usize, usize)>,
    /// The positions of pictures with bidirectional attention between their rows.
    undivided: Undivided,
}

/// The rows of one picture within a range of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct PictureRows<'a> {
    /// The index of the picture.
    pub(in crate::engine) picture: usize,
    /// The range of its rows.
    pub(in crate::engine) rows: Range<usize>,
    /// Their positions in the prompt.
    pub(in crate::engine) positions: &'a [usize],
}

impl Pictures {
    /// Creates the pictures of a prompt for the model of a folder. `slides` is true if the context may shift.
    pub(in crate::engine) fn of(
        prompt: &[u32],
        images: &[Pixels],
        slides: bool,
        folder: &ModelFolder,
    ) -> Result<Self> {
        if images.is_empty() {
            return Ok(Self::default());
        }
        let processor = folder.images.as_ref().map_err(NoImages::error)?;
        if slides && processor.has_grid_positions() {
            let message = "slide cannot be done with pictures of this model, which have positions of their own; evict-turns can";
            return Err(Error::request("context_policy", message));
        }
        Self::new(prompt, images, processor)
    }

    /// Creates the pictures of a prompt, which contains the processor's picture token once for each of their rows.
    fn new(prompt: &[u32], images: &[Pixels], processor: &Processor) -> Result<Self> {
        let (mut ends, mut rows) = (Vec::with_capacity(images.len()), 0);
        for image in images {
            rows += processor.rows(image)?;
            ends.push(rows);
        }
        let token = processor.image_token();
        let places = prompt.iter().enumerate().filter(|(_, it)| **it == token).map(|(place, _)| place);
        let places: Vec<usize> = places.collect();
        if places.len() != rows {
            let message = format!(
                "have {rows} rows, but the prompt has {} picture tokens (id {token}); it needs one for each row",
                places.len()
            );
            return Err(Error::request("images", message));
        }
        let grids = images.iter().filter(|_| processor.has_grid_positions());
        let grids = grids.map(|image| processor.grid(image)).collect::<Result<_>>()?;
        let pictures =
            Self { images: images.to_vec(), ends, positions: places, grids, undivided: Undivided::default() };
        if processor.is_bidirectional() { pictures.into_undivided() } else { Ok(pictures) }
    }

    /// Makes the pictures undivided. The rows of each must be consecutive, with another token between pictures.
    fn into_undivided(self) -> Result<Self> {
        let mut parts: Vec<Range<usize>> = Vec::with_capacity(self.images.len());
        for PictureRows { picture, positions: places, .. } in self.within(&(0..usize::MAX)) {
            let part = places[0]..places[places.len() - 1] + 1;
            let behind = parts.last().is_none_or(|before| before.end < part.start);
            if part.len() != places.len() || !behind {
                let message = format!(
                    "have rows that attend to each other; the rows of image {} must be consecutive, with another token before them",
                    picture + 1
                );
                return Err(Error::request("images", message));
            }
            parts.push(part);
        }
        Ok(Self { undivided: Undivided::new(parts), ..self })
    }

    /// Returns the ranges of the prompt within which no chunk ends.
    pub(in crate::engine) fn undivided(&self) -> &Undivided {
        &self.undivided
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    pub(in crate::engine) fn images(&self) -> &[Pixels] {
        &self.images
    }

    /// Returns the position of the first row.
    pub(in crate::engine) fn first_position(&self) -> Option<usize> {
        self.positions.first().copied()
    }

    /// Returns the bytes of all pixels.
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.images.iter().map(|image| image.rgb().len()).sum()
    }

    /// Returns the rows within a range of the prompt, grouped by picture.
    pub(in crate::engine) fn within(&self, part: &Range<usize>) -> Vec<PictureRows<'_>> {
        let before = |position: usize| self.positions.partition_point(|place| *place < position);
        let (first, last) = (before(part.start), before(part.end));
        let mut start = 0;
        let rows = self.ends.iter().enumerate().filter_map(|(picture, &end)| {
            let (begin, all) = (start, first.max(start)..last.min(end));
            start = end;
            let rows = || all.start - begin..all.end - begin;
            (!all.is_empty()).then(|| PictureRows {
                picture,
                rows: rows(),
                positions: &self.positions[all.clone()],
            })
        });
        rows.collect()
    }

    /// Returns the offset between rope positions and token positions at `place`, caused by the pictures before it. A picture advances the
    /// rope position by the longer side of its grid, not by its number of rows.
    pub(in crate::engine) fn shift_at(&self, place: usize) -> i32 {
        let before = self.ends.iter().zip(&self.grids).filter(|(end, _)| self.positions[**end - 1] < place);
        before.map(|(_, &(rows, columns))| rows.max(columns) as i32 - (rows * columns) as i32).sum()
    }

    /// Returns the time, height and width of each row in a range of the prompt; empty if no row belongs to a picture.
    pub(in crate::engine) fn positions(&self, part: &Range<usize>) -> Vec<[i32; 3]> {
        let of_pictures = self.within(part);
        if self.grids.is_empty() || of_pictures.is_empty() {
            return Vec::new();
        }
        let mut positions: Vec<[i32; 3]> =
            part.clone().map(|place| [place as i32 + self.shift_at(place); 3]).collect();
        for PictureRows { picture, rows, positions: places } in of_pictures {
            let first = self.positions[picture.checked_sub(1).map_or(0, |before| self.ends[before])];
            let (begin, columns) = (first as i32 + self.shift_at(first), self.grids[picture].1);
            for (row, place) in rows.zip(places) {
                let (down, across) = ((row / columns) as i32, (row % columns) as i32);
                positions[place - part.start] = [begin, begin + down, begin + across];
            }
        }
        positions
    }

    /// Returns the prompt with the number of each picture at all positions of its rows.
    pub(in crate::engine) fn keys(&self, prompt: &[u32], numbers: &[u32]) -> Vec<u32> {
        let mut keys = prompt.to_vec();
        for PictureRows { picture, positions: places, .. } in self.within(&(0..prompt.len())) {
            for &place in places {
                keys[place] = numbers[picture];
            }
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates pictures with these numbers of rows at the positions of token 9.
    fn pictures(prompt: &[u32], rows: &[usize]) -> Pictures {
        let images = rows.iter().map(|_| Pixels::new(1, 1, vec![0; 3]).expect("a picture")).collect();
        let ends = rows.iter().scan(0, |end, rows| {
            *end += rows;
            Some(*end)
        });
        let places = (0..prompt.len()).filter(|place| prompt[*place] == 9).collect();
        Pictures { images, ends: ends.collect(), positions: places, ..Pictures::default() }
    }

    #[test]
    fn every_row_stands_in_one_part_whatever_the_parts() {
        let prompt = [1, 9, 9, 2, 9, 9, 3, 3, 9, 4];
        let pictures = pictures(&prompt, &[4, 1]);
        assert_eq!(pictures.first_position(), Some(1));
        for cut in 0..=prompt.len() {
            let parts = [0..cut, cut..prompt.len()].map(|part| {
                let rows = pictures.within(&part);
                assert!(rows.iter().all(|it| it.positions.iter().all(|place| part.contains(place))));
                let each = |it: PictureRows| it.rows.map(|row| (it.picture, row)).collect::<Vec<_>>();
                rows.into_iter().flat_map(each).collect::<Vec<_>>()
            });
            assert_eq!(parts.concat(), [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)], "{cut}");
        }
    }

    #[test]
    fn rows_of_a_picture_have_positions_in_height_and_width() {
        let prompt = [1, 9, 9, 9, 9, 9, 9, 3, 9, 4];
        let pictures = Pictures { grids: vec![(2, 3), (1, 1)], ..pictures(&prompt, &[6, 1]) };
        let expected = [
            [0, 0, 0],
            [1, 1, 1],
            [1, 1, 2],
            [1, 1, 3],
            [1, 2, 1],
            [1, 2, 2],
            [1, 2, 3],
            [4, 4, 4],
            [5, 5, 5],
            [6, 6, 6],
        ];
        assert_eq!(pictures.positions(&(0..10)), expected);
        for cut in 2..7 {
            assert_eq!([pictures.positions(&(0..cut)), pictures.positions(&(cut..10))].concat(), expected);
        }
        assert_eq!((pictures.positions(&(0..1)), pictures.positions(&(9..10))), (Vec::new(), Vec::new()));
        assert_eq!([0, 7, 9, 20].map(|place| pictures.shift_at(place)), [0, -3, -3, -3]);
    }

    #[test]
    fn a_picture_has_its_number_at_all_places() {
        let prompt = [1, 9, 9, 2, 9, 9, 3, 3, 9, 4];
        let keys = pictures(&prompt, &[4, 1]).keys(&prompt, &[100, 101]);
        assert_eq!(keys, [1, 100, 100, 2, 100, 100, 3, 3, 101, 4]);
    }
}
