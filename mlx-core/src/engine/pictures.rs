//! The pictures of a prompt: where their rows stand in it, and what stands for them where texts are compared.

mod seen;

use std::ops::Range;

pub(in crate::engine) use self::seen::Seen;
use crate::error::{Error, Result};
use crate::image::Pixels;
use crate::processor::Processor;

/// The pictures of a prompt, in order.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct Pictures {
    images: Vec<Pixels>,
    /// Where the rows of each picture end among the rows of all.
    ends: Vec<usize>,
    /// The position of every row in the prompt, rising.
    places: Vec<usize>,
}

/// Rows of a picture that stand in a part of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct PictureRows<'a> {
    /// Which picture.
    pub(in crate::engine) picture: usize,
    /// Which of its rows.
    pub(in crate::engine) rows: Range<usize>,
    /// Their positions in the prompt.
    pub(in crate::engine) places: &'a [usize],
}

impl Pictures {
    /// The pictures of a prompt in which the processor's token of pictures stands once for each of their rows.
    pub(in crate::engine) fn new(prompt: &[u32], images: &[Pixels], processor: &Processor) -> Result<Self> {
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
                "have {rows} rows, and the prompt has {} places for them (token {token})",
                places.len()
            );
            return Err(Error::request("images", message));
        }
        Ok(Self { images: images.to_vec(), ends, places })
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    pub(in crate::engine) fn images(&self) -> &[Pixels] {
        &self.images
    }

    /// The position of the first row.
    pub(in crate::engine) fn first_place(&self) -> Option<usize> {
        self.places.first().copied()
    }

    /// Bytes of their pixels.
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.images.iter().map(|image| image.rgb().len()).sum()
    }

    /// The rows that stand in a part of the prompt, picture by picture.
    pub(in crate::engine) fn within(&self, part: &Range<usize>) -> Vec<PictureRows<'_>> {
        let before = |position: usize| self.places.partition_point(|place| *place < position);
        let (first, last) = (before(part.start), before(part.end));
        let mut start = 0;
        let rows = self.ends.iter().enumerate().filter_map(|(picture, &end)| {
            let (begin, all) = (start, first.max(start)..last.min(end));
            start = end;
            let rows = || all.start - begin..all.end - begin;
            (!all.is_empty()).then(|| PictureRows {
                picture,
                rows: rows(),
                places: &self.places[all.clone()],
            })
        });
        rows.collect()
    }

    /// The prompt with the number of each picture at all of its places.
    pub(in crate::engine) fn keys(&self, prompt: &[u32], numbers: &[u32]) -> Vec<u32> {
        let mut keys = prompt.to_vec();
        for PictureRows { picture, places, .. } in self.within(&(0..prompt.len())) {
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

    /// Pictures with so many rows each at the places of the number 9.
    fn pictures(prompt: &[u32], rows: &[usize]) -> Pictures {
        let images = rows.iter().map(|_| Pixels::new(1, 1, vec![0; 3]).expect("a picture")).collect();
        let ends = rows.iter().scan(0, |end, rows| {
            *end += rows;
            Some(*end)
        });
        let places = (0..prompt.len()).filter(|place| prompt[*place] == 9).collect();
        Pictures { images, ends: ends.collect(), places }
    }

    #[test]
    fn every_row_stands_in_one_part_whatever_the_parts() {
        let prompt = [1, 9, 9, 2, 9, 9, 3, 3, 9, 4];
        let pictures = pictures(&prompt, &[4, 1]);
        assert_eq!(pictures.first_place(), Some(1));
        for cut in 0..=prompt.len() {
            let parts = [0..cut, cut..prompt.len()].map(|part| {
                let rows = pictures.within(&part);
                assert!(rows.iter().all(|it| it.places.iter().all(|place| part.contains(place))));
                let each = |it: PictureRows| it.rows.map(|row| (it.picture, row)).collect::<Vec<_>>();
                rows.into_iter().flat_map(each).collect::<Vec<_>>()
            });
            assert_eq!(parts.concat(), [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)], "{cut}");
        }
    }

    #[test]
    fn a_picture_has_its_number_at_all_places() {
        let prompt = [1, 9, 9, 2, 9, 9, 3, 3, 9, 4];
        let keys = pictures(&prompt, &[4, 1]).keys(&prompt, &[100, 101]);
        assert_eq!(keys, [1, 100, 100, 2, 100, 100, 3, 3, 101, 4]);
    }
}
