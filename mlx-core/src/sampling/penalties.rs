//! Repetition, frequency and presence penalties, with incremental counts.

use std::collections::HashMap;
use std::ops::Range;

use super::params::Penalties;
use super::pending_draw::Edits;

/// The number of occurrences of each token in the window. Always equals a count from scratch.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// The index of each token in `entries`.
    places: HashMap<u32, usize>,
    entries: Vec<Entry>,
    /// The logits of the entries' tokens while they are edited.
    logits: Vec<f32>,
}

/// The part of a history that counts use. Tokens from `prompt_length` on are generated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) prompt_length: usize,
}

#[derive(Debug)]
struct Entry {
    token: u32,
    /// The occurrences in prompt and answer.
    all: u32,
    /// The occurrences in the answer.
    generated: u32,
}

impl Counts {
    /// Moves the counts from the window over `old` to the window over `new`. Their first `unchanged` tokens are equal. A truncation returns
    /// tokens to the window, at most as many as it removed.
    pub(super) fn update(&mut self, old: Counted<'_>, new: Counted<'_>, unchanged: usize, window: i64) {
        let before = window_start(old.tokens.len(), window)..old.tokens.len();
        let after = window_start(new.tokens.len(), window)..new.tokens.len();
        for place in added(&before, &after, unchanged).into_iter().flatten() {
            self.add(new.tokens[place], place >= new.prompt_length);
        }
        for place in added(&after, &before, unchanged).into_iter().flatten() {
            self.remove(old.tokens[place], place >= old.prompt_length);
        }
    }

    /// Edits the logits of all tokens in the window. Skips tokens outside of the row.
    #[expect(clippy::float_cmp, reason = "off is exactly this value")]
    pub(super) fn apply(&mut self, penalties: &Penalties, row: &mut [f32]) {
        // Gathered first, so that the arithmetic runs over contiguous memory.
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
                    count => logit - penalty_of(penalties, count),
                };
            }
        }
    }

    /// Adds the effect of [`Self::apply`] to the edits of each token.
    pub(super) fn add_edits(&self, penalties: &Penalties, edits: &mut Edits) {
        for entry in &self.entries {
            let edit = edits.of(entry.token);
            edit.repetition = penalties.repetition;
            edit.penalty = if entry.generated > 0 { penalty_of(penalties, entry.generated) } else { 0.0 };
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

/// Returns the positions in the window `after` that are not in `before`, or have changed tokens.
fn added(before: &Range<usize>, after: &Range<usize>, unchanged: usize) -> [Range<usize>; 2] {
    let kept = before.start.max(after.start)..before.end.min(after.end).min(unchanged);
    if kept.is_empty() { [after.clone(), 0..0] } else { [after.start..kept.start, kept.end..after.end] }
}

/// Returns the penalty of a token that was generated `count` times.
fn penalty_of(penalties: &Penalties, count: u32) -> f32 {
    penalties.frequency * count as f32 + penalties.presence
}

/// Computes `x > 0 ? x / penalty : x * penalty`. The sign is unpredictable, so both are computed and the sign bit selects one. Both are
/// equal for zeros.
fn repeated(logit: f32, penalty: f32) -> f32 {
    let negative = ((logit.to_bits() as i32) >> 31) as u32;
    f32::from_bits(((logit * penalty).to_bits() & negative) | ((logit / penalty).to_bits() & !negative))
}

/// Returns the start of a window of the last `window` tokens; -1 is the whole history.
pub(super) fn window_start(length: usize, window: i64) -> usize {
    usize::try_from(window).map_or(0, |window| length.saturating_sub(window))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The work is counted in added and removed positions, for a history of 64,000 tokens.
    #[test]
    fn a_rollback_recounts_what_it_removed_and_what_came_back() {
        const LENGTH: usize = 64_000;
        for window in [-1, 0, 1, 20, 64, 1_000, 100_000] {
            let places = |length: usize| window_start(length, window)..length;
            for back in [0, 1, 5, 300, 5_000] {
                for more in [0, 1, 7] {
                    let (before, after) = (places(LENGTH), places(LENGTH - back + more));
                    let unchanged = LENGTH - back;
                    let count = |ranges: [Range<usize>; 2]| ranges.into_iter().flatten().count();
                    let work =
                        count(added(&before, &after, unchanged)) + count(added(&after, &before, unchanged));
                    assert!(work <= 2 * (back + more), "window {window}, {back} back, {more} more: {work}");
                }
            }
        }
    }
}
