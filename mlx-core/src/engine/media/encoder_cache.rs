//! Caches the output of the towers: the features of recently used pictures and clips, and a number for each. Invariant: no two of them ever
//! have the same number.

use std::collections::{BTreeMap, VecDeque};

use super::Medium;
use super::least_recently_used::LeastRecentlyUsed;
use crate::error::{Error, Result};
use crate::model::{AudioTower, Hidden, Vision};

/// The maximum number of items with numbers. A dropped item gets a new number later, so nothing cached under the old number matches.
const MAX_NUMBERS: usize = 1 << 16;

/// Features may use one in this many bytes of the unreserved memory.
const SHARE: u64 = 8;

/// The SHA-256 hash of a picture or a clip.
type Hash = [u8; 32];

/// The towers of a model that can be used.
#[derive(Default)]
pub(in crate::engine) struct Towers {
    pub(in crate::engine) vision: Option<Vision>,
    pub(in crate::engine) audio: Option<AudioTower>,
}

impl Towers {
    /// Computes the features of a picture or a clip. Returns their bytes, too.
    fn encode(&self, medium: &Medium) -> Result<(Hidden, u64)> {
        let missing = |kind| Error::Internal(format!("{kind} was accepted without a tower"));
        Ok(match medium {
            Medium::Picture(image) => {
                let vision = self.vision.as_ref().ok_or_else(|| missing("an image"))?;
                (Hidden::new(vision.features(image)?), vision.footprint().features(image))
            }
            Medium::Clip(clip) => {
                let audio = self.audio.as_ref().ok_or_else(|| missing("audio"))?;
                (Hidden::new(audio.features(clip)?), audio.footprint().features(clip))
            }
        })
    }
}

/// The towers of an engine, and the pictures and clips that they have encoded.
pub(in crate::engine) struct EncoderCache {
    towers: Towers,
    numbers: BTreeMap<Hash, u32>,
    /// The numbered items, oldest first.
    numbered: VecDeque<Hash>,
    /// The next number; `None` if all numbers are used.
    next: Option<u32>,
    /// Separate for each owner, since the duration of an answer reveals a cache hit.
    features: LeastRecentlyUsed<(Option<u64>, Hash), Hidden>,
}

impl EncoderCache {
    /// Creates an empty cache. Numbers start above the vocabulary.
    pub(in crate::engine) fn new(towers: Towers, vocabulary: usize) -> Self {
        Self {
            towers,
            numbers: BTreeMap::new(),
            numbered: VecDeque::new(),
            next: u32::try_from(vocabulary).ok(),
            features: LeastRecentlyUsed::default(),
        }
    }

    /// Returns the number of an item, or `None` if no numbers are left.
    pub(in crate::engine) fn number(&mut self, medium: &Medium) -> Option<u32> {
        if let Some(number) = self.numbers.get(medium.hash()) {
            return Some(*number);
        }
        let number = self.next?;
        self.next = number.checked_add(1);
        if self.numbered.len() == MAX_NUMBERS
            && let Some(oldest) = self.numbered.pop_front()
        {
            self.numbers.remove(&oldest);
        }
        self.numbers.insert(*medium.hash(), number);
        self.numbered.push_back(*medium.hash());
        Some(number)
    }

    /// Returns the cached features of an owner's item.
    pub(in crate::engine) fn get(&mut self, owner: Option<u64>, medium: &Medium) -> Option<Hidden> {
        self.features.get(&(owner, *medium.hash())).cloned()
    }

    /// Computes the features of an owner's item and caches them. Nothing may be pending on the device.
    pub(in crate::engine) fn encode(&mut self, owner: Option<u64>, medium: &Medium) -> Result<Hidden> {
        let (features, bytes) = self.towers.encode(medium)?;
        features.wait()?;
        self.features.insert((owner, *medium.hash()), features.clone(), bytes);
        Ok(features)
    }

    /// Returns the bytes of the cached features.
    pub(in crate::engine) fn bytes(&self) -> u64 {
        self.features.bytes()
    }

    /// Drops all features.
    pub(in crate::engine) fn clear(&mut self) {
        self.features = LeastRecentlyUsed::default();
    }

    /// Evicts the least recently used features until the cache fits into its share of `free` bytes.
    pub(in crate::engine) fn shrink_to_fit(&mut self, free: u64) {
        self.features.shrink_to(free / SHARE);
    }
}

#[cfg(test)]
mod tests {
    use chat_format::Pixels;

    use super::*;

    fn image(color: u32) -> Medium {
        Medium::Picture(Pixels::new(1, 1, color.to_le_bytes()[..3].to_vec()).expect("a picture"))
    }

    #[test]
    fn no_number_is_given_twice() {
        let mut cache = EncoderCache::new(Towers::default(), 100);
        assert_eq!([0, 1, 0, 2].map(|color| cache.number(&image(color))), [100, 101, 100, 102].map(Some));
        cache.next = Some(u32::MAX);
        assert_eq!(
            [3, 4, 3].map(|color| cache.number(&image(color))),
            [Some(u32::MAX), None, Some(u32::MAX)]
        );
    }

    #[test]
    fn the_oldest_picture_is_forgotten_and_gets_another_number() {
        let mut cache = EncoderCache::new(Towers::default(), 0);
        let most = MAX_NUMBERS as u32;
        assert!((0..=most).all(|color| cache.number(&image(color)) == Some(color)));
        assert_eq!((cache.numbers.len(), cache.numbered.len()), (MAX_NUMBERS, MAX_NUMBERS));
        assert_eq!([1, most, 0].map(|color| cache.number(&image(color))), [1, most, most + 1].map(Some));
    }
}
