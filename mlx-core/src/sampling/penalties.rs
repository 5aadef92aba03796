//! Repetition, frequency and presence penalties, counted as the history grows.

use std::collections::HashMap;

use super::params::Penalties;

/// How often each token of the window has been there. Equals a count of the window from scratch at all times.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Where each token stands in `entries`.
    places: HashMap<u32, usize>,
    entries: Vec<Entry>,
    /// The logits of the entries' tokens, while they are edited.
    logits: Vec<f32>,
    /// How much of the history has left the window.
    start: usize,
    /// How much of the history has been counted.
    end: usize,
}

#[derive(Debug)]
struct Entry {
    token: u32,
    /// In prompt and answer.
    all: u32,
    /// In the answer.
    generated: u32,
}

impl Counts {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes the tokens from the last counted one to the end of `history`, and lets go of those that leave the
    /// window. Tokens from `prompt_length` on are generated.
    pub(super) fn extend(&mut self, history: &[u32], prompt_length: usize, window: i64) {
        let start = window_start(history.len(), window).max(self.start);
        // What has left the window before it was counted need not be counted.
        for (place, &token) in history.iter().enumerate().skip(self.end.max(start)) {
            self.add(token, place >= prompt_length);
        }
        for (place, &token) in history.iter().enumerate().take(start.min(self.end)).skip(self.start) {
            self.remove(token, place >= prompt_length);
        }
        (self.start, self.end) = (start, history.len());
    }

    /// Edits the logits of all tokens of the window. Tokens beyond the row are passed over.
    #[expect(clippy::float_cmp, reason = "off is exactly this value")]
    pub(super) fn apply(&mut self, penalties: &Penalties, row: &mut [f32]) {
        // The logits are gathered first, so that the arithmetic runs over neighbors.
        let Self { entries, logits, .. } = self;
        logits.clear();
        logits.extend(entries.iter().map(|it| row.get(it.token as usize).copied().unwrap_or_default()));
        if penalties.repetition != 1.0 {
            for logit in logits.iter_mut() {
                *logit = repeated(*logit, penalties.repetition);
            }
        }
        for (entry, &logit) in entries.iter().zip(logits.iter()) {
            if let Some(place) = row.get_mut(entry.token as usize) {
                *place = match entry.generated {
                    0 => logit,
                    count => logit - (penalties.frequency * count as f32 + penalties.presence),
                };
            }
        }
    }

    fn add(&mut self, token: u32, generated: bool) {
        let place = *self.places.entry(token).or_insert_with(|| {
            self.entries.push(Entry { token, all: 0, generated: 0 });
            self.entries.len() - 1
        });
        let entry = &mut self.entries[place];
        entry.all += 1;
        entry.generated += u32::from(generated);
    }

    fn remove(&mut self, token: u32, generated: bool) {
        let Some(&place) = self.places.get(&token) else { return };
        let entry = &mut self.entries[place];
        entry.all -= 1;
        entry.generated -= u32::from(generated);
        if entry.all == 0 {
            self.places.remove(&token);
            self.entries.swap_remove(place);
            if let Some(moved) = self.entries.get(place) {
                self.places.insert(moved.token, place);
            }
        }
    }
}

/// `x > 0 ? x / penalty : x * penalty`. Nothing foretells the sign, so both are computed and the sign bit picks one; for
/// zeros they are the same.
fn repeated(logit: f32, penalty: f32) -> f32 {
    let negative = ((logit.to_bits() as i32) >> 31) as u32;
    f32::from_bits(((logit * penalty).to_bits() & negative) | ((logit / penalty).to_bits() & !negative))
}

/// Where a window of the last `window` tokens begins; -1 is the whole history.
pub(super) fn window_start(length: usize, window: i64) -> usize {
    usize::try_from(window).map_or(0, |window| length.saturating_sub(window))
}
