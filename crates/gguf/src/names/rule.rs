//! The rules that give a stored tensor its name and its change in the folder.

/// The names of the tensors of an architecture.
#[derive(Clone, Copy)]
pub(crate) struct Naming {
    /// Groups of rules. The first rule that fits applies.
    pub(crate) rules: &'static [&'static [Rule]],
    /// The prefix of the names of layers in the folder.
    pub(crate) layers: &'static str,
    /// True if the value heads of gated delta layers are stored tiled.
    pub(crate) tiled: bool,
}

/// Stands for the number of an expert in the names of a rule.
pub(crate) const ANY: &str = "*";

/// A rule for a stored tensor of a layer, or of the whole model.
pub(crate) struct Rule {
    /// The stored name, without `blk.0.`. Without a suffix such as `.weight`, the rule is for all suffixes.
    pub(crate) stored: &'static str,
    /// The name in the folder, without `model.layers.0.`, and without a suffix if `stored` has none.
    pub(crate) folder: &'static str,
    /// The change of the tensor.
    pub(crate) edit: Edit,
}

/// The change of a tensor on the way to the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edit {
    /// None.
    Same,
    /// The folder does not have the tensor.
    Skip,
    /// Rows of a head alternate, see [`RowOrder::Halves`](crate::placement::RowOrder::Halves).
    Halves,
    /// 1 is subtracted.
    MinusOne,
    /// `A` of Mamba, stored as a column.
    Rate,
    /// The shape becomes one axis.
    Flat,
    /// The shape becomes one row.
    Row,
    /// A convolution: `[channels, taps]` becomes `[channels, 1, taps]`.
    Taps,
    /// Gate above up, for each expert: two tensors, with `gate_proj` and `up_proj` instead of `gate_up_proj` in the name.
    GateUp,
    /// Queries above keys above values: three tensors, with `q_proj` and so on instead of `qkv_proj` in the name.
    Queries,
    /// A row for each head: a tensor each, with the number of the head at the end of the name.
    Heads,
    /// Parts of a gated delta layer.
    Delta(Delta),
}

/// A part of a gated delta layer. Its value heads are stored tiled if there are more of them than key heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delta {
    /// Queries, keys and values.
    Qkv,
    /// Rows of the value heads.
    Values,
    /// A row for each value head.
    Heads,
    /// Corrections and decays by key head: two tensors, with `in_proj_b` and `in_proj_a` instead of `in_proj_ba` in the name.
    BetaAlpha,
    /// Columns of the value heads.
    Output,
    /// The convolution over queries, keys and values: `[channels, taps]` becomes `[channels, taps, 1]`. This shape also tells that norms have
    /// 1 added.
    Taps,
    /// `A`, a number for each value head.
    Rate,
}
