//! The files that an engine is started with. All names with the same files share one engine and its memory budget.

use std::path::PathBuf;

use mlx_core::engine::FolderStamp;

/// The folder, its files and the adapters of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EngineKey {
    /// The canonical folder or GGUF file of the model.
    pub(super) folder: PathBuf,
    /// The folders of its adapters.
    pub(super) adapters: Vec<PathBuf>,
    /// The state of these files; `None` if they cannot be read.
    pub(super) stamp: Option<FolderStamp>,
}
