//! The pictures and audio clips of a prompt: the positions of their rows, and the keys by which prompts are compared.

mod encoder_cache;
mod least_recently_used;
mod medium;
mod placing;

use std::ops::Range;

use chat_format::Pixels;

pub(in crate::engine) use self::encoder_cache::{EncoderCache, Towers};
pub(in crate::engine) use self::medium::Medium;
use self::placing::{Placed, Queue, place};
use crate::engine::schedule::undivided::Undivided;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::processor::{AudioClip, NoMedia};

/// The pictures and clips of a prompt, in order.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct Media {
    items: Vec<Medium>,
    /// The end of each item's rows among the rows of all items.
    ends: Vec<usize>,
    /// The position of every row in the prompt, in ascending order.
    positions: Vec<usize>,
    /// Rows and columns of each picture, for models with positions in height and width, which take no audio; empty for other models.
    grids: Vec<(usize, usize)>,
    /// The positions of pictures with bidirectional attention between their rows.
    undivided: Undivided,
}

/// The rows of one item within a range of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct MediumRows<'a> {
    /// The index of the item.
    pub(in crate::engine) item: usize,
    /// The range of its rows.
    pub(in crate::engine) rows: Range<usize>,
    /// Their positions in the prompt.
    pub(in crate::engine) positions: &'a [usize],
}

impl Media {
    /// Creates the pictures and clips of a prompt for the model of a folder. The prompt contains the placeholder token of their kind once for
    /// each of their rows. `slides` is true if the context may shift.
    pub(in crate::engine) fn of(
        prompt: &[u32],
        (images, clips): (&[Pixels], &[AudioClip]),
        slides: bool,
        folder: &ModelFolder,
    ) -> Result<Self> {
        let (mut queues, mut grids, mut is_bidirectional) = (Vec::new(), Vec::new(), false);
        if !images.is_empty() {
            let processor = folder.images.as_ref().map_err(NoMedia::for_images)?;
            if processor.has_grid_positions() {
                if slides {
                    let message = "slide cannot be done with pictures of this model, which have positions of their own; evict-turns can";
                    return Err(Error::request("context_policy", message));
                }
                grids = images.iter().map(|image| processor.grid(image)).collect::<Result<_>>()?;
            }
            is_bidirectional = processor.is_bidirectional();
            let items =
                images.iter().map(|image| Ok((Medium::Picture(image.clone()), processor.rows(image)?)));
            queues.push(Queue::new("images", processor.image_token(), items.collect::<Result<_>>()?));
        }
        if !clips.is_empty() {
            let processor = folder.audio.as_ref().map_err(NoMedia::for_audio)?;
            let items = clips.iter().map(|clip| Ok((Medium::Clip(clip.clone()), processor.rows(clip)?)));
            queues.push(Queue::new("audio", processor.audio_token(), items.collect::<Result<_>>()?));
        }
        let Placed { items, ends, positions } = place(prompt, queues)?;
        let media = Self { items, ends, positions, grids, undivided: Undivided::default() };
        if is_bidirectional { media.into_undivided() } else { Ok(media) }
    }

    /// Makes the pictures undivided. The rows of each must be consecutive, with another token between pictures.
    fn into_undivided(self) -> Result<Self> {
        let mut parts: Vec<Range<usize>> = Vec::with_capacity(self.items.len());
        for MediumRows { item, positions: places, .. } in self.within(&(0..usize::MAX)) {
            if !matches!(self.items[item], Medium::Picture(_)) {
                continue;
            }
            let part = places[0]..places[places.len() - 1] + 1;
            let behind = parts.last().is_none_or(|before| before.end < part.start);
            if part.len() != places.len() || !behind {
                let message = format!(
                    "have rows that attend to each other; the rows of image {} must be consecutive, with another token before them",
                    parts.len() + 1
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
        self.items.is_empty()
    }

    pub(in crate::engine) fn items(&self) -> &[Medium] {
        &self.items
    }

    /// Returns the pictures.
    pub(in crate::engine) fn pictures(&self) -> impl Iterator<Item = &Pixels> + Clone {
        self.items.iter().filter_map(Medium::picture)
    }

    /// Returns the audio clips.
    pub(in crate::engine) fn clips(&self) -> impl Iterator<Item = &AudioClip> + Clone {
        self.items.iter().filter_map(Medium::clip)
    }

    /// Returns the positions of rows of audio within a range of the prompt, relative to its start.
    pub(in crate::engine) fn audio_within(&self, part: &Range<usize>) -> Vec<usize> {
        let audio = self.within(part).into_iter().filter(|rows| self.items[rows.item].clip().is_some());
        audio.flat_map(|rows| rows.positions).map(|position| position - part.start).collect()
    }

    /// Returns the rows of all audio clips.
    pub(in crate::engine) fn audio_rows(&self) -> usize {
        let starts = std::iter::once(&0).chain(&self.ends);
        let rows = self.items.iter().zip(starts.zip(&self.ends));
        rows.filter(|(item, _)| item.clip().is_some()).map(|(_, (start, end))| end - start).sum()
    }

    /// Returns the position of the first row.
    pub(in crate::engine) fn first_position(&self) -> Option<usize> {
        self.positions.first().copied()
    }

    /// Returns the bytes of all pixels and frames.
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.items.iter().map(Medium::bytes).sum()
    }

    /// Returns the rows within a range of the prompt, grouped by item.
    pub(in crate::engine) fn within(&self, part: &Range<usize>) -> Vec<MediumRows<'_>> {
        let before = |position: usize| self.positions.partition_point(|place| *place < position);
        let (first, last) = (before(part.start), before(part.end));
        let mut start = 0;
        let rows = self.ends.iter().enumerate().filter_map(|(item, &end)| {
            let (begin, all) = (start, first.max(start)..last.min(end));
            start = end;
            let rows = || all.start - begin..all.end - begin;
            (!all.is_empty()).then(|| MediumRows {
                item,
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
        for MediumRows { item: picture, rows, positions: places } in of_pictures {
            let first = self.positions[picture.checked_sub(1).map_or(0, |before| self.ends[before])];
            let (begin, columns) = (first as i32 + self.shift_at(first), self.grids[picture].1);
            for (row, place) in rows.zip(places) {
                let (down, across) = ((row / columns) as i32, (row % columns) as i32);
                positions[place - part.start] = [begin, begin + down, begin + across];
            }
        }
        positions
    }

    /// Returns the prompt with the number of each item at all positions of its rows.
    pub(in crate::engine) fn keys(&self, prompt: &[u32], numbers: &[u32]) -> Vec<u32> {
        let mut keys = prompt.to_vec();
        for MediumRows { item, positions: places, .. } in self.within(&(0..prompt.len())) {
            for &place in places {
                keys[place] = numbers[item];
            }
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates pictures with these numbers of rows at the positions of token 9.
    fn pictures(prompt: &[u32], rows: &[usize]) -> Media {
        let items = rows.iter().map(|_| Medium::Picture(Pixels::new(1, 1, vec![0; 3]).expect("a picture")));
        let ends = rows.iter().scan(0, |end, rows| {
            *end += rows;
            Some(*end)
        });
        let places = (0..prompt.len()).filter(|place| prompt[*place] == 9).collect();
        Media { items: items.collect(), ends: ends.collect(), positions: places, ..Media::default() }
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
                let each = |it: MediumRows| it.rows.map(|row| (it.item, row)).collect::<Vec<_>>();
                rows.into_iter().flat_map(each).collect::<Vec<_>>()
            });
            assert_eq!(parts.concat(), [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)], "{cut}");
        }
    }

    #[test]
    fn rows_of_a_picture_have_positions_in_height_and_width() {
        let prompt = [1, 9, 9, 9, 9, 9, 9, 3, 9, 4];
        let pictures = Media { grids: vec![(2, 3), (1, 1)], ..pictures(&prompt, &[6, 1]) };
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
