//! The settings of rank 0 for a divided model.

use std::path::PathBuf;

use crate::weights::WeightPolicy;

/// The settings of this machine, rank 0.
pub(crate) struct RankZero {
    pub(crate) policy: WeightPolicy,
    /// The memory budget in bytes.
    pub(crate) budget: u64,
    /// True if the MTP head is to be loaded.
    pub(crate) with_mtp: bool,
    /// Bytes of the head or of the model that drafts.
    pub(crate) draft_bytes: u64,
    /// The folders of adapters.
    pub(crate) adapters: Vec<PathBuf>,
}
