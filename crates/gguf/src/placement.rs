//! The place of a stored tensor in the model folder, and how its numbers change on the way there.

/// The place of a stored tensor in the model folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The name in the folder, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// The shape in the folder, outermost axis first, if it differs from the stored one. The number of elements is equal.
    pub shape: Option<Vec<usize>>,
    /// The order of the rows.
    pub rows: RowOrder,
    /// The change of each number. Only tensors of floats change.
    pub change: Change,
}

/// The order in which stored rows become rows of the folder's tensor. Rows are counted over all axes but the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// Unchanged.
    Same,
    /// Stored rows of a head alternate between the two halves that the rotary embedding combines; in the folder the halves follow each other.
    Halves {
        /// Rows of a head.
        head_dim: usize,
    },
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
        Self { name: name.into(), shape: None, rows: RowOrder::Same, change: Change::Same }
    }
}
