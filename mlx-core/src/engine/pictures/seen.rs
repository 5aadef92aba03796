//! What the vision tower made of pictures: the features of those that were seen lately, and a number for each. Invariant: no two pictures
//! ever have the same number.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::image::Pixels;
use crate::model::{Hidden, Vision};

/// The most pictures whose numbers are known. One that is forgotten gets another number, under which nothing is kept.
const MOST_NUMBERS: usize = 1 << 16;

/// Of the memory that is not reserved, features take one byte in so many.
const SHARE: u64 = 8;

/// SHA-256 of a picture.
type Hash = [u8; 32];

/// The pictures that an engine knows.
pub(in crate::engine) struct Seen {
    vision: Option<Vision>,
    numbers: BTreeMap<Hash, u32>,
    /// The next number; `None` when all were given.
    next: Option<u32>,
    features: BTreeMap<Hash, Kept>,
    uses: u64,
}

struct Kept {
    features: Hidden,
    bytes: u64,
    used: u64,
}

impl Seen {
    /// None so far. Numbers are above those of the vocabulary.
    pub(in crate::engine) fn new(vision: Option<Vision>, vocabulary: usize) -> Self {
        let next = u32::try_from(vocabulary).ok();
        Self { vision, numbers: BTreeMap::new(), next, features: BTreeMap::new(), uses: 0 }
    }

    /// The number of a picture; `None` if there are no more.
    pub(in crate::engine) fn number(&mut self, image: &Pixels) -> Option<u32> {
        if let Some(number) = self.numbers.get(image.hash()) {
            return Some(*number);
        }
        let number = self.next?;
        self.next = number.checked_add(1);
        if self.numbers.len() == MOST_NUMBERS
            && let Some(oldest) = self.numbers.iter().min_by_key(|it| *it.1).map(|it| *it.0)
        {
            self.numbers.remove(&oldest);
        }
        self.numbers.insert(*image.hash(), number);
        Some(number)
    }

    /// The features of a picture, kept or computed now. Nothing may be pending on the device.
    pub(in crate::engine) fn features(&mut self, image: &Pixels) -> Result<Hidden> {
        self.uses += 1;
        if let Some(kept) = self.features.get_mut(image.hash()) {
            kept.used = self.uses;
            return Ok(kept.features.clone());
        }
        let missing = || Error::EngineStopped("a picture was accepted without a tower".into());
        let vision = self.vision.as_ref().ok_or_else(missing)?;
        let features = Hidden::new(vision.features(image)?);
        features.wait()?;
        let kept =
            Kept { features: features.clone(), bytes: vision.footprint().features(image), used: self.uses };
        self.features.insert(*image.hash(), kept);
        Ok(features)
    }

    /// Bytes of the features that are kept.
    pub(in crate::engine) fn bytes(&self) -> u64 {
        self.features.values().map(|kept| kept.bytes).sum()
    }

    /// Drops the features that were used longest ago until they take no more than their share of `free` bytes.
    pub(in crate::engine) fn make_room(&mut self, free: u64) {
        while self.bytes() > free / SHARE {
            let oldest = self.features.iter().min_by_key(|it| it.1.used).map(|it| *it.0);
            let Some(oldest) = oldest else { return };
            self.features.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_twice() {
        let mut seen = Seen::new(None, 100);
        let image = |color: u8| Pixels::new(1, 1, vec![color, 0, 0]).expect("a picture");
        assert_eq!([0, 1, 0, 2].map(|color| seen.number(&image(color))), [100, 101, 100, 102].map(Some));
        seen.next = Some(u32::MAX);
        assert_eq!([3, 4, 3].map(|color| seen.number(&image(color))), [Some(u32::MAX), None, Some(u32::MAX)]);
    }
}
