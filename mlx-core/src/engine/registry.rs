//! The engines of a program. Starting a model twice loads it once; if its files have changed, it is loaded again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use super::handle::{Engine, Shared};
use super::options::EngineOptions;
use crate::error::{Error, Result};

/// The state of a model folder's files: name, size and modification time, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FolderStamp(Vec<(PathBuf, u64, SystemTime)>);

impl FolderStamp {
    /// Reads the state of the files of `folder`; links are followed.
    pub fn of(folder: &Path) -> Result<Self> {
        let about = |error| Error::io(folder, error);
        let mut files = Vec::new();
        let paths = match folder.read_dir() {
            Ok(entries) => {
                entries.map(|entry| Ok(entry.map_err(about)?.path())).collect::<Result<Vec<_>>>()?
            }
            Err(error) if error.kind() == ErrorKind::NotADirectory => mlx_gguf::parts(folder),
            Err(error) => return Err(about(error)),
        };
        for path in paths {
            // Other programs may leave broken links here.
            if let Ok(metadata) = path.metadata().as_ref()
                && metadata.is_file()
            {
                files.push((path, metadata.len(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)));
            }
        }
        files.sort();
        Ok(Self(files))
    }

    /// Adds the files of other folders.
    pub fn with(mut self, folders: &[PathBuf]) -> Result<Self> {
        for folder in folders {
            self.0.extend(Self::of(folder)?.0);
        }
        Ok(self)
    }
}

/// The running engines of a program. The registry does not keep them alive.
#[derive(Default)]
pub struct Engines(Mutex<Vec<Arc<Entry>>>);

/// A model with its options, and its engine.
struct Entry {
    folder: PathBuf,
    stamp: FolderStamp,
    options: EngineOptions,
    /// Locked while the model is loaded, so that a second caller waits for the first caller's engine.
    engine: Mutex<Weak<Shared>>,
}

impl Engines {
    /// Returns the running engine for the model in `folder` with these options, if its files are unchanged. Otherwise starts one like
    /// [`Engine::start`].
    pub fn start(
        &self,
        folder: &Path,
        options: &EngineOptions,
        progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<Engine> {
        self.start_by(folder, options, || Engine::start(folder, options, progress))
    }

    /// Like [`Engines::start`], with another function that starts an engine.
    pub fn start_by(
        &self,
        folder: &Path,
        options: &EngineOptions,
        start: impl FnOnce() -> Result<Engine>,
    ) -> Result<Engine> {
        let Ok(canonical) = folder.canonicalize() else { return start() };
        let stamp = FolderStamp::of(folder)?.with(&options.adapters)?;
        let entry = self.entry(canonical, stamp, options);
        let mut running = entry.lock();
        if let Some(engine) = running.upgrade().map(Engine::from_shared).filter(Engine::is_ready) {
            return Ok(engine);
        }
        let engine = start()?;
        *running = engine.downgrade();
        Ok(engine)
    }

    /// Returns the entry of a model, which may have no engine yet. The list is locked only during the lookup.
    fn entry(&self, folder: PathBuf, stamp: FolderStamp, options: &EngineOptions) -> Arc<Entry> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An entry without an engine remains while another thread starts one.
        entries.retain(|it| Arc::strong_count(it) > 1 || it.lock().strong_count() > 0);
        let same = |it: &&Arc<Entry>| it.folder == folder && it.stamp == stamp && it.options == *options;
        if let Some(known) = entries.iter().find(same) {
            return Arc::clone(known);
        }
        let new = Arc::new(Entry { folder, stamp, options: options.clone(), engine: Mutex::default() });
        entries.push(Arc::clone(&new));
        new
    }
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, Weak<Shared>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
