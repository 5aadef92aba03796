//! The edits and the random number of the next draw, before its logits exist. A device uses them to guess the token. No draw depends on them.

use std::collections::HashMap;

/// The next draw of a sequence, before its logits exist.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PendingDraw {
    /// The edits of the logits.
    pub(crate) edits: Vec<LogitEdit>,
    /// The random choice; `None` if the largest logit is drawn.
    pub(crate) random: Option<RandomDraw>,
}

/// A draw at `uniform`, in (0, 1), from the cumulative distribution of `softmax(x * scale)`. Only tokens with a logit of at least the largest
/// logit plus `floor`, which is negative, can be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RandomDraw {
    pub(crate) scale: f32,
    pub(crate) uniform: f32,
    pub(crate) floor: f32,
}

/// The edit of the logit `x` of a token: `repeated(x + bias) - penalty`, where `repeated(y)` is `y > 0 ? y / repetition : y * repetition`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LogitEdit {
    pub(crate) token: u32,
    pub(crate) bias: f32,
    pub(crate) repetition: f32,
    pub(crate) penalty: f32,
}

impl LogitEdit {
    /// Creates an edit that changes nothing.
    pub(crate) fn none(token: u32) -> Self {
        Self { token, bias: 0.0, repetition: 1.0, penalty: 0.0 }
    }

    /// Edits a row of logits if it contains the token.
    #[cfg(test)]
    pub(crate) fn apply(self, row: &mut [f32]) {
        let Some(logit) = row.get_mut(self.token as usize) else { return };
        let biased = *logit + self.bias;
        let repeated = if biased > 0.0 { biased / self.repetition } else { biased * self.repetition };
        *logit = repeated - self.penalty;
    }
}

/// The edits of a row, one for each token.
#[derive(Debug, Default)]
pub(super) struct Edits {
    places: HashMap<u32, usize>,
    all: Vec<LogitEdit>,
}

impl Edits {
    pub(super) fn of(&mut self, token: u32) -> &mut LogitEdit {
        let place = *self.places.entry(token).or_insert(self.all.len());
        if place == self.all.len() {
            self.all.push(LogitEdit::none(token));
        }
        &mut self.all[place]
    }

    pub(super) fn into_all(self) -> Vec<LogitEdit> {
        self.all
    }
}
