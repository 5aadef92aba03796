//! A slice of a tensor: selected positions along one axis, wherever their bytes are in the file.

use std::ops::Range;

/// Pieces shorter than a disk page are read together with the bytes between them, which the disk reads anyway.
const PAGE: usize = 4 << 10;

/// Bytes of such a read.
const AT_ONCE: usize = 1 << 20;

/// Positions along an axis: ascending ranges in units of 1/`of` of its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AxisSelection {
    /// The number of units; divides the length of the axis.
    pub(crate) of: usize,
    pub(crate) ranges: Vec<Range<usize>>,
}

/// The selected bytes in each of the equal runs that a tensor consists of.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    /// Bytes of a run.
    run: usize,
    /// Ascending byte ranges within each run.
    pieces: Vec<Range<usize>>,
}

impl Slice {
    /// Selects positions of an axis of a tensor with this shape and byte length. Axes count from 1 for the last one. Returns the shape of
    /// the slice and its bytes; `None` if `of` does not divide the axis.
    pub(super) fn at(
        shape: &[usize],
        bytes: usize,
        axis: usize,
        places: &AxisSelection,
    ) -> Option<(Vec<usize>, Self)> {
        let axis = shape.len().checked_sub(axis)?;
        let length = shape[axis];
        if places.of == 0 || !length.is_multiple_of(places.of) || bytes == 0 {
            return None;
        }
        let unit = length / places.of;
        let inner = unit * (bytes / shape[..=axis].iter().product::<usize>());
        let pieces = places.ranges.iter().map(|range| range.start * inner..range.end * inner).collect();
        let mut shape = shape.to_vec();
        shape[axis] = unit * places.ranges.iter().map(Range::len).sum::<usize>();
        Some((shape, Self { run: places.of * inner, pieces }))
    }

    /// The bytes in the file that `bytes` bytes of pieces span; `None` unless they are whole runs.
    pub(super) fn in_file(&self, bytes: usize) -> Option<usize> {
        let of_run = self.of_run();
        bytes.is_multiple_of(of_run).then(|| bytes / of_run * self.run)
    }

    /// Bytes of the pieces in one run.
    fn of_run(&self) -> usize {
        self.pieces.iter().map(Range::len).sum()
    }

    /// Reads the pieces of all runs into `bytes`, one after the other. `read` reads at an offset of the whole tensor.
    pub(super) fn read<E>(
        &self,
        bytes: &mut [u8],
        mut read: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let of_run = self.of_run();
        let is_exact = self.pieces.iter().all(|piece| piece.len() >= PAGE);
        if is_exact {
            for (number, mut rest) in bytes.chunks_mut(of_run).enumerate() {
                for piece in &self.pieces {
                    let (target, behind) = rest.split_at_mut(piece.len());
                    read(number * self.run + piece.start, target)?;
                    rest = behind;
                }
            }
            return Ok(());
        }
        let runs = (AT_ONCE / self.run).max(1);
        let mut buffer = Vec::new();
        for (number, part) in bytes.chunks_mut(runs * of_run).enumerate() {
            buffer.resize(part.len() / of_run * self.run, 0);
            read(number * runs * self.run, &mut buffer)?;
            let pieces =
                buffer.chunks(self.run).flat_map(|run| self.pieces.iter().map(|it| &run[it.clone()]));
            let mut rest = part;
            for piece in pieces {
                let (target, behind) = rest.split_at_mut(piece.len());
                target.copy_from_slice(piece);
                rest = behind;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the slice of a tensor of these numbers, and the number of bytes read for it.
    fn found_at(
        numbers: &[u16],
        shape: &[usize],
        axis: usize,
        of: usize,
        places: &[[usize; 2]],
    ) -> Option<(Vec<u16>, Vec<usize>, usize)> {
        let file: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let ranges = places.iter().map(|[start, end]| *start..*end).collect();
        let (shape, cut) = Slice::at(shape, file.len(), axis, &AxisSelection { of, ranges })?;
        let mut bytes = vec![0; 2 * shape.iter().product::<usize>()];
        let mut count = 0;
        let read = |start: usize, target: &mut [u8]| -> Result<(), ()> {
            count += target.len();
            target.copy_from_slice(file.get(start..start + target.len()).ok_or(())?);
            Ok(())
        };
        cut.read(&mut bytes, read).expect("it is within the file");
        let found = bytes.as_chunks::<2>().0.iter().map(|two| u16::from_le_bytes(*two));
        Some((found.collect(), shape, count))
    }

    #[test]
    fn a_part_has_its_places_along_an_axis() {
        let numbers: Vec<u16> = (0..24).collect();
        let at = |shape: &[usize], axis, of, places: &[[usize; 2]]| {
            found_at(&numbers, shape, axis, of, places).map(|(found, shape, _)| (found, shape))
        };
        assert_eq!(at(&[4, 6], 2, 2, &[[1, 2]]), Some(((12..24).collect(), vec![2, 6])));
        let columns = vec![3, 4, 5, 9, 10, 11, 15, 16, 17, 21, 22, 23];
        assert_eq!(at(&[4, 6], 1, 2, &[[1, 2]]), Some((columns, vec![4, 3])));
        // Two stacked blocks, then three, the first of them twice as long.
        assert_eq!(
            at(&[4, 6], 2, 4, &[[0, 1], [2, 3]]),
            Some(([0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17].into(), vec![2, 6]))
        );
        assert_eq!(
            at(&[8, 3], 2, 8, &[[2, 4], [5, 6], [7, 8]]).map(|it| it.0),
            Some(vec![6, 7, 8, 9, 10, 11, 15, 16, 17, 21, 22, 23])
        );
        assert_eq!(at(&[2, 4, 3], 2, 4, &[[0, 1]]), Some((vec![0, 1, 2, 12, 13, 14], vec![2, 1, 3])));
        for (shape, axis, of) in [(&[4, 6][..], 2, 3), (&[4, 6], 2, 8), (&[4, 6], 3, 1), (&[24], 1, 0)] {
            assert_eq!(at(shape, axis, of, &[[0, 1]]), None, "{shape:?}, {axis}, {of}");
        }
    }

    #[test]
    fn pieces_of_a_page_are_read_alone_and_shorter_ones_with_what_is_between() {
        let numbers: Vec<u16> = (0..3 * PAGE).map(|number| number as u16).collect();
        let (of_pages, _, read) = found_at(&numbers, &[3, PAGE], 1, 2, &[[1, 2]]).expect("it is even");
        assert_eq!((of_pages.len(), read), (3 * PAGE / 2, 3 * PAGE));
        let (of_rows, _, read) = found_at(&numbers, &[PAGE, 3], 1, 3, &[[2, 3]]).expect("it is even");
        assert_eq!(read, 6 * PAGE);
        assert!(of_rows.iter().enumerate().all(|(row, found)| *found == (3 * row + 2) as u16));
        // More than one read.
        let numbers: Vec<u16> = (0..2 * AT_ONCE).map(|number| (number % 65_521) as u16).collect();
        let (found, ..) = found_at(&numbers, &[AT_ONCE, 2], 1, 2, &[[1, 2]]).expect("it is even");
        assert!(found.iter().enumerate().all(|(row, found)| *found == ((2 * row + 1) % 65_521) as u16));
    }
}
