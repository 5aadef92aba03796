//! The columns of a pool that each row of a decode step sees. All layers of a pass with the same lengths share one mask.

use std::cell::RefCell;

use mlx_rs::Array;
use mlx_rs::ops::{broadcast_to, le};

use crate::cache::Bucket;
use crate::error::Result;

/// The masks of a pass.
#[derive(Default)]
pub(in crate::model) struct Masks(RefCell<Vec<(Key, Array)>>);

/// The numbers that determine a mask.
#[derive(Clone, PartialEq)]
struct Key {
    /// The last position that each place sees.
    last: Vec<i32>,
    /// Places of a slot.
    most: i32,
    columns: i32,
    window: Option<i32>,
    heads: i32,
}

impl Masks {
    /// `[slots, heads, most, columns]`: true where a place of the bucket sees a column; `None` if all see all.
    pub(super) fn of(&self, bucket: &Bucket, window: Option<i32>, heads: i32) -> Result<Option<Array>> {
        let columns = bucket.seen.len();
        let sees_all = |&last: &i32| last + 1 == columns && window.is_none_or(|window| columns <= window);
        if bucket.last.iter().all(sees_all) {
            return Ok(None);
        }
        let key = Key { last: bucket.last.clone(), most: bucket.most as i32, columns, window, heads };
        let mut masks = self.0.borrow_mut();
        if let Some((_, mask)) = masks.iter().find(|(known, _)| *known == key) {
            return Ok(Some(mask.clone()));
        }
        let mask = match window {
            None => key.up_to_last()?,
            Some(window) => key.within(window)?,
        };
        masks.push((key, mask.clone()));
        Ok(Some(mask))
    }
}

impl Key {
    fn slots(&self) -> i32 {
        self.last.len() as i32 / self.most
    }

    /// Position `p` is in column `p`. The comparison writes the mask out for all heads: MLX's kernel for few rows copies one that is
    /// broadcast, in each layer.
    fn up_to_last(&self) -> Result<Array> {
        let slots = self.last.chunks(self.most as usize);
        let last: Vec<i32> = slots.flat_map(|slot| slot.repeat(self.heads as usize)).collect();
        let last = Array::from_slice(&last, &[self.slots(), self.heads, self.most, 1]);
        let columns: Vec<i32> = (0..self.columns).collect();
        Ok(le(Array::from_slice(&columns, &[self.columns]), last)?)
    }

    /// Position `p` is in column `p % columns`, and a row sees the newest of them. There are few columns, so the host makes the mask.
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
