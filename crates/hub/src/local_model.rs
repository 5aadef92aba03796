//! A model on this machine, and the store that has it.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

/// A program's collection of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Store {
    /// The Hub cache, which `mlx pull` writes.
    Hub,
    /// LM Studio's folder.
    LmStudio,
    /// Ollama's store.
    Ollama,
}

/// A model on this machine.
#[derive(Debug, Clone)]
pub struct LocalModel {
    /// The name that [`Stores::find`](crate::Stores::find) resolves: `ORG/NAME`, `ORG/NAME:QUANTIZATION` for a GGUF file, or Ollama's
    /// `MODEL:TAG`.
    pub name: String,
    /// The store.
    pub store: Store,
    /// The folder, or the GGUF file.
    pub path: PathBuf,
    /// The total size of the files in bytes.
    pub bytes: u64,
    /// The time when files were last added.
    pub modified: SystemTime,
    /// The reason if the files cannot be used, such as a missing file.
    pub problem: Option<String>,
    /// The revision in the Hub cache.
    pub revision: Option<Revision>,
}

/// A revision of a model in the Hub cache.
#[derive(Debug, Clone)]
pub struct Revision {
    /// The commit.
    pub commit: String,
    /// The branches and tags that point to the commit.
    pub references: Vec<String>,
}

impl Store {
    /// Returns the identifier for scripts.
    pub fn id(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::LmStudio => "lmstudio",
            Self::Ollama => "ollama",
        }
    }

    /// Returns the store's description in messages.
    pub(crate) fn place(self) -> &'static str {
        match self {
            Self::Hub => "the cache",
            Self::LmStudio => "LM Studio's folder",
            Self::Ollama => "Ollama's store",
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Hub => "Hub cache",
            Self::LmStudio => "LM Studio",
            Self::Ollama => "Ollama",
        })
    }
}
