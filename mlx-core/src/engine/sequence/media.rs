//! The pictures and audio clips of a sequence: the features that a chunk needs, and the keys by which prompts are compared.

use std::borrow::Cow;
use std::ops::Range;

use super::Sequence;
use crate::engine::media::Medium;
use crate::error::{Error, Result};
use crate::model::Hidden;

impl Sequence {
    /// Returns the items whose features a chunk of the prompt needs and that are not encoded.
    pub(in crate::engine) fn media_to_encode(&self, chunk: &Range<usize>) -> Vec<(usize, Medium)> {
        let Some(run) = &self.run else { return Vec::new() };
        let needed = self.media.within(chunk).into_iter().map(|rows| rows.item);
        let missing = needed.filter(|item| !run.features.contains_key(item));
        missing.map(|item| (item, self.media.items()[item].clone())).collect()
    }

    /// Drops features that the prompt after `chunk_end` does not need.
    pub(in crate::engine) fn drop_features_before(&mut self, chunk_end: usize) {
        let Some(run) = self.run.as_mut().filter(|run| !run.features.is_empty()) else { return };
        let rest = self.media.within(&(chunk_end..self.history.prompt_length()));
        let first = rest.first().map_or(usize::MAX, |rows| rows.item);
        run.features.retain(|item, _| *item >= first);
    }

    /// Returns the feature rows of a prompt chunk, with their positions in the chunk.
    pub(in crate::engine) fn features_within(
        &self,
        chunk: &Range<usize>,
    ) -> Result<Vec<(Hidden, Vec<usize>)>> {
        let rows = self.media.within(chunk).into_iter().map(|part| {
            let features = self.run.as_ref().and_then(|run| run.features.get(&part.item));
            let unseen =
                || Error::Internal("a picture or clip was not encoded before its rows were needed".into());
            let rows = features.ok_or_else(unseen)?.rows(part.rows)?;
            Ok((rows, part.positions.iter().map(|place| place - chunk.start).collect()))
        });
        rows.collect()
    }

    /// Assigns a number to each picture and clip, which identifies it.
    pub(in crate::engine) fn number_media(&mut self, number: impl FnMut(&Medium) -> Option<u32>) {
        if !self.media.is_empty() {
            let numbers: Option<Vec<u32>> = self.media.items().iter().map(number).collect();
            let prompt = &self.history.tokens()[..self.history.prompt_length()];
            self.keys = numbers.map(|numbers| self.media.keys(prompt, &numbers));
        }
    }

    /// Returns the keys of the first `length` tokens. Different pictures and clips have different keys, though their tokens are equal. Returns `None`
    /// if the text must not be compared.
    pub(in crate::engine) fn keys(&self, length: usize) -> Option<Cow<'_, [u32]>> {
        let (tokens, prompt) = (self.history.tokens(), self.history.prompt_length());
        if self.media.is_empty() {
            return Some(Cow::Borrowed(&tokens[..length]));
        }
        let keys = self.keys.as_deref()?;
        Some(match length.checked_sub(prompt) {
            None | Some(0) => Cow::Borrowed(&keys[..length]),
            Some(_) => Cow::Owned([keys, &tokens[prompt..length]].concat()),
        })
    }

    /// Returns the keys of the whole prompt.
    pub(in crate::engine) fn prompt_keys(&self) -> Option<Cow<'_, [u32]>> {
        self.keys(self.history.prompt_length())
    }

    /// Returns the first `length` tokens, up to the first picture or clip.
    pub(in crate::engine) fn before_media(&self, length: usize) -> &[u32] {
        &self.history.tokens()[..self.media.first_position().map_or(length, |place| place.min(length))]
    }
}
