//! The place of a stored tensor in the model folder, and how its numbers change on the way there.

/// The place of a stored tensor, or of some of its rows, in the model folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The name in the folder, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// The shape in the folder, outermost axis first, if it differs from the stored one. The number of elements is equal, except for
    /// [`RowOrder::Part`].
    pub shape: Option<Vec<usize>>,
    /// The order of the rows.
    pub rows: RowOrder,
    /// The order of the numbers in each row.
    pub columns: ColumnOrder,
    /// The change of each number. Only tensors of floats change.
    pub change: Change,
}

/// The order in which stored rows become rows of the folder's tensor. Rows are counted over all stored axes but the last. Each number of a
/// vector is a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// Unchanged.
    Same,
    /// Stored rows of a head alternate between the two halves that the rotary embedding combines; in the folder the halves follow each other.
    Halves {
        /// Rows of a head.
        head_dim: usize,
    },
    /// Only some stored rows: `count` rows from `start` on, of every `period` rows.
    Part {
        /// The number of stored rows after which the pattern repeats.
        period: usize,
        /// The first row.
        start: usize,
        /// The number of rows.
        count: usize,
    },
    /// Each stored row becomes several rows.
    Repeated {
        /// The number of rows.
        times: usize,
    },
    /// From row `first` on, the first heads of all groups are stored before the second heads of all groups, and so on. In the folder the heads
    /// of a group follow each other.
    Tiled {
        /// The first row of the first head. Rows before it are unchanged.
        first: usize,
        /// The order of the heads.
        heads: Tiles,
    },
}

/// The order of the numbers in each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnOrder {
    /// Unchanged.
    Same,
    /// As [`RowOrder::Tiled`], for columns. Runs of `heads.size` columns stay together.
    Tiled {
        /// The order of the heads.
        heads: Tiles,
    },
}

/// Heads in groups of equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiles {
    /// The number of groups.
    pub groups: usize,
    /// The number of heads in a group.
    pub heads: usize,
    /// The number of rows or columns of a head.
    pub size: usize,
}

/// A change of each number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Unchanged.
    Same,
    /// 1 is subtracted: GGUF stores the norms of Gemma with 1 added.
    MinusOne,
    /// The logarithm of the negated number: GGUF stores `A` of Mamba, the folder `A_log`.
    LogOfNegative,
}

impl Placement {
    /// Returns the placement of a tensor that changes only its name.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            shape: None,
            rows: RowOrder::Same,
            columns: ColumnOrder::Same,
            change: Change::Same,
        }
    }
}

impl RowOrder {
    /// Returns the stored row for row `row` of the folder's tensor.
    pub fn stored(self, row: usize) -> usize {
        match self {
            Self::Same => row,
            Self::Repeated { times } => row / times,
            Self::Halves { head_dim } => {
                let (head, inside, half) = (row / head_dim, row % head_dim, head_dim / 2);
                head * head_dim + inside % half * 2 + inside / half
            }
            Self::Part { period, start, count } => row / count * period + start + row % count,
            Self::Tiled { first, .. } if row < first => row,
            Self::Tiled { first, heads } => first + heads.stored(row - first),
        }
    }

    /// Returns the number of rows of the folder's tensor, for `stored` rows. `None` if they do not fit the order.
    pub fn count(self, stored: usize) -> Option<usize> {
        let fits = match self {
            Self::Same => true,
            Self::Repeated { times } => return stored.checked_mul(times).filter(|_| times > 0),
            Self::Halves { head_dim } => {
                head_dim > 0 && head_dim.is_multiple_of(2) && stored.is_multiple_of(head_dim)
            }
            Self::Part { period, start, count } => {
                let end = start.checked_add(count)?;
                if count == 0 || end > period || !stored.is_multiple_of(period) {
                    return None;
                }
                return Some(stored / period * count);
            }
            Self::Tiled { first, heads } => first.checked_add(heads.total()?)? == stored,
        };
        fits.then_some(stored)
    }
}

impl ColumnOrder {
    /// Returns the stored column for column `column` of the folder's tensor.
    pub fn stored(self, column: usize) -> usize {
        match self {
            Self::Same => column,
            Self::Tiled { heads } => heads.stored(column),
        }
    }

    /// Returns true if a row of `width` numbers fits the order.
    pub(crate) fn fits(self, width: usize) -> bool {
        match self {
            Self::Same => true,
            Self::Tiled { heads } => heads.total() == Some(width),
        }
    }
}

impl Tiles {
    /// Returns the number of rows or columns of all heads; `None` if it overflows or is 0.
    pub(crate) fn total(self) -> Option<usize> {
        self.groups.checked_mul(self.heads)?.checked_mul(self.size).filter(|&total| total > 0)
    }

    pub(crate) fn stored(self, index: usize) -> usize {
        let (head, inside) = (index / self.size, index % self.size);
        let (group, of_group) = (head / self.heads, head % self.heads);
        (of_group * self.groups + group) * self.size + inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_undo_the_permutation() {
        let order = RowOrder::Halves { head_dim: 6 };
        let stored: Vec<usize> = (0..12).map(|row| order.stored(row)).collect();
        assert_eq!(stored, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
        assert_eq!(order.count(12), Some(12));
        assert_eq!(order.count(13), None);
        assert_eq!(RowOrder::Halves { head_dim: 0 }.count(0), None);
    }

    #[test]
    fn a_part_repeats() {
        let order = RowOrder::Part { period: 4, start: 2, count: 2 };
        assert_eq!((0..4).map(|row| order.stored(row)).collect::<Vec<_>>(), [2, 3, 6, 7]);
        assert_eq!(order.count(8), Some(4));
        assert_eq!(order.count(7), None);
        assert_eq!(RowOrder::Part { period: 2, start: 1, count: 2 }.count(2), None);
        assert_eq!(RowOrder::Part { period: 0, start: 0, count: 0 }.count(0), None);
    }

    #[test]
    fn rows_are_repeated() {
        let order = RowOrder::Repeated { times: 3 };
        assert_eq!((0..6).map(|row| order.stored(row)).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
        assert_eq!((order.count(2), order.count(usize::MAX)), (Some(6), None));
        assert_eq!(RowOrder::Repeated { times: 0 }.count(2), None);
    }

    #[test]
    fn tiles_become_groups() {
        let heads = Tiles { groups: 2, heads: 3, size: 2 };
        let order = RowOrder::Tiled { first: 1, heads };
        // Stored: group 0 head 0, group 1 head 0, group 0 head 1, and so on.
        let expected = [0, 1, 2, 5, 6, 9, 10, 3, 4, 7, 8, 11, 12];
        assert_eq!((0..13).map(|row| order.stored(row)).collect::<Vec<_>>(), expected);
        assert_eq!(order.count(13), Some(13));
        assert_eq!(order.count(12), None);
        assert!(ColumnOrder::Tiled { heads }.fits(12) && !ColumnOrder::Tiled { heads }.fits(13));
        assert_eq!(ColumnOrder::Tiled { heads }.stored(2), 4);
    }
}
