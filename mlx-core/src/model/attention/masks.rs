//! Attention masks of a pass. Layers with the same window and lengths share one array.

use std::cell::RefCell;
use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::{broadcast_to, gt, le, logical_and};

use crate::cache::Bucket;
use crate::error::Result;

/// The masks of a pass so far.
#[derive(Default)]
pub(in crate::model) struct Masks(RefCell<Vec<(Key, Array)>>);

/// The numbers that determine a mask.
#[derive(Clone, PartialEq)]
enum Key {
    Step(Step),
    Band(Band),
    /// The number of rows.
    Later(i32),
}

/// Rows of several sequences over the columns of a pool.
#[derive(Clone, PartialEq)]
struct Step {
    /// The last position that each place attends to.
    last: Vec<i32>,
    /// Places of a slot.
    most: i32,
    columns: i32,
    window: Option<i32>,
    heads: i32,
}

/// The last rows of one sequence, in a layer with a window.
#[derive(Clone, PartialEq)]
struct Band {
    rows: i32,
    seen: i32,
    window: i32,
    /// Rows of a picture attend to each other.
    pictures: Vec<Range<i32>>,
}

impl Masks {
    /// Returns `[slots, heads, most, columns]`: true where a place of the bucket attends to a column. `None` if all attend to all.
    pub(super) fn of(&self, bucket: &Bucket, window: Option<i32>, heads: i32) -> Result<Option<Array>> {
        let columns = bucket.seen.len();
        let sees_all = |&last: &i32| last + 1 == columns && window.is_none_or(|window| columns <= window);
        if bucket.last_positions.iter().all(sees_all) {
            return Ok(None);
        }
        let step = Step {
            last: bucket.last_positions.clone(),
            most: bucket.rows_per_slot as i32,
            columns,
            window,
            heads,
        };
        self.cached(Key::Step(step)).map(Some)
    }

    /// Returns `[rows, seen]` for the last `rows` of `seen` positions: true where a row attends to a position. These are the row itself, up to
    /// `window - 1` positions before it, and the rows of its picture. Returns `None` if a causal mask is enough.
    pub(super) fn band(
        &self,
        rows: i32,
        seen: i32,
        window: Option<i32>,
        pictures: &[Range<i32>],
    ) -> Result<Option<Array>> {
        match window {
            Some(window) if rows > 1 && (seen > window || !pictures.is_empty()) => {
                let band = Band { rows, seen, window, pictures: pictures.to_vec() };
                self.cached(Key::Band(band)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns `[rows, rows]` to add to scores: minus infinity for the rows after a row, 0 for the others.
    pub(super) fn later(&self, rows: i32) -> Result<Array> {
        self.cached(Key::Later(rows))
    }

    fn cached(&self, key: Key) -> Result<Array> {
        let mut masks = self.0.borrow_mut();
        if let Some((_, mask)) = masks.iter().find(|(known, _)| *known == key) {
            return Ok(mask.clone());
        }
        let mask = match &key {
            Key::Step(step) => step.mask()?,
            Key::Band(band) => band.mask()?,
            Key::Later(rows) => later(*rows),
        };
        masks.push((key, mask.clone()));
        Ok(mask)
    }
}

impl Step {
    fn mask(&self) -> Result<Array> {
        match self.window {
            None => self.up_to_last(),
            Some(window) => self.within(window),
        }
    }

    fn slots(&self) -> i32 {
        self.last.len() as i32 / self.most
    }

    /// Position `p` is in column `p`. The comparison writes the mask for all heads: MLX's kernel for few rows copies a broadcast mask in
    /// each layer.
    fn up_to_last(&self) -> Result<Array> {
        let slots = self.last.chunks(self.most as usize);
        let last: Vec<i32> = slots.flat_map(|slot| slot.repeat(self.heads as usize)).collect();
        let last = Array::from_slice(&last, &[self.slots(), self.heads, self.most, 1]);
        Ok(le(counted(self.columns), last)?)
    }

    /// Position `p` is in column `p % columns`, which holds the newest positions. There are few columns, so the host makes the mask.
    fn within(&self, window: i32) -> Result<Array> {
        let sees = |last: i32| {
            (0..self.columns).map(move |column| {
                let age = (last - column).rem_euclid(self.columns);
                age <= last && age < window
            })
        };
        let mask: Vec<bool> = self.last.iter().flat_map(|&last| sees(last)).collect();
        let mask = Array::from_slice(&mask, &[self.slots(), 1, self.most, self.columns]);
        if self.heads == 1 {
            return Ok(mask);
        }
        Ok(broadcast_to(mask, &[self.slots(), self.heads, self.most, self.columns])?.contiguous()?)
    }
}

impl Band {
    /// The device makes it from two columns and a row. On the host it would be `rows * seen` booleans to write and copy.
    fn mask(&self) -> Result<Array> {
        let before = self.seen - self.rows;
        let column = |numbers: Vec<i32>| Array::from_slice(&numbers, &[self.rows, 1]);
        let last = |row: i32| {
            before + self.pictures.iter().find(|picture| picture.contains(&row)).map_or(row, |it| it.end - 1)
        };
        let positions = counted(self.seen);
        let not_later = le(&positions, column((0..self.rows).map(last).collect()))?;
        let first = column((0..self.rows).map(|row| before + row - self.window).collect());
        Ok(logical_and(not_later, gt(&positions, first)?)?)
    }
}

/// `[count]`: the numbers from 0.
fn counted(count: i32) -> Array {
    Array::from_slice(&(0..count).collect::<Vec<_>>(), &[count])
}

fn later(rows: i32) -> Array {
    let row = |row: i32| (0..rows).map(move |other| if other > row { f32::NEG_INFINITY } else { 0.0 });
    let mask: Vec<f32> = (0..rows).flat_map(row).collect();
    Array::from_slice(&mask, &[rows, rows])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_band_is_a_window_before_each_row_and_its_picture() {
        let _turn = crate::device_lock::device();
        for (rows, seen, window) in [(1, 9, 4), (2, 2, 8), (3, 9, 4), (5, 5, 2), (6, 11, 5)] {
            for picture in [0..0, 1..rows, 0..rows.min(2)] {
                let pictures: Vec<Range<i32>> =
                    if picture.is_empty() { Vec::new() } else { vec![picture.clone()] };
                let masks = Masks::default();
                let mask = masks.band(rows, seen, Some(window), &pictures).expect("a mask");
                let Some(mask) = mask else {
                    assert!(rows == 1 || (seen <= window && pictures.is_empty()));
                    continue;
                };
                let expected = (0..rows).flat_map(|row| {
                    let own = seen - rows + row;
                    let end = if picture.contains(&row) { seen - rows + picture.end } else { own + 1 };
                    (0..seen).map(move |position| position < end && own - position < window)
                });
                assert_eq!(mask.as_slice::<bool>(), expected.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn layers_share_the_masks_of_a_pass() {
        let _turn = crate::device_lock::device();
        let masks = Masks::default();
        for window in [4, 4, 6, 4, 6] {
            masks.band(3, 9, Some(window), &[]).expect("a mask");
            masks.later(3).expect("a mask");
        }
        assert_eq!(masks.0.borrow().len(), 3);
    }
}
