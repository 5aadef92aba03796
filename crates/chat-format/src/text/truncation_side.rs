//! The side of a text that is cut.

/// The side of a text that is cut if the text is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TruncationSide {
    /// The text loses its start.
    Left,
    /// The text loses its end.
    Right,
}

impl TruncationSide {
    /// Returns the side with this name, as transformers spells it.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "left" => Some(Self::Left),
            "right" => Some(Self::Right),
            _ => None,
        }
    }

    /// Cuts ids to `length`.
    pub(super) fn cut(self, ids: &mut Vec<u32>, length: usize) {
        match self {
            Self::Left => drop(ids.drain(..ids.len().saturating_sub(length))),
            Self::Right => ids.truncate(length),
        }
    }
}
