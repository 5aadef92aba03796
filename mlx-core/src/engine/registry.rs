//! Engines that run in this process: a model that is asked for twice is read once, and one whose files have changed is read anew.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use super::handle::{EngineHandle, Shared};
use super::options::EngineOptions;
use crate::error::{Error, Result};

/// What a model folder's files looked like: name, bytes, time of the last change, in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderStamp(Vec<(PathBuf, u64, SystemTime)>);

impl FolderStamp {
    /// Looks at the files of `folder`; links are followed.
    pub fn of(folder: &Path) -> Result<Self> {
        let about = |error| Error::io(folder, error);
        let mut files = Vec::new();
        for entry in folder.read_dir().map_err(about)? {
            let path = entry.map_err(about)?.path();
            // A link that leads nowhere is some other program's business.
            if let Ok(metadata) = path.metadata().as_ref()
                && metadata.is_file()
            {
                files.push((path, metadata.len(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)));
            }
        }
        files.sort();
        Ok(Self(files))
    }
}

struct Running {
    folder: PathBuf,
    stamp: FolderStamp,
    options: EngineOptions,
    /// Locked while the model is loaded, so that whoever asks for the same one at the same time waits for it.
    engine: Mutex<Weak<Shared>>,
}

/// Locked for as long as it takes to look something up.
static RUNNING: Mutex<Vec<Arc<Running>>> = Mutex::new(Vec::new());

impl Running {
    /// The entry for a model, which may have no engine yet.
    fn of(folder: PathBuf, stamp: FolderStamp, options: &EngineOptions) -> Arc<Self> {
        let mut all = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody may just be starting the engine of an entry that has none.
        all.retain(|it| Arc::strong_count(it) > 1 || it.lock().strong_count() > 0);
        let same = |it: &&Arc<Self>| it.folder == folder && it.stamp == stamp && it.options == *options;
        if let Some(known) = all.iter().find(same) {
            return Arc::clone(known);
        }
        let new = Arc::new(Self { folder, stamp, options: options.clone(), engine: Mutex::default() });
        all.push(Arc::clone(&new));
        new
    }

    fn lock(&self) -> MutexGuard<'_, Weak<Shared>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EngineHandle {
    /// The engine that runs the model in `folder` with these options already, if its files are still the same; else one that is
    /// started now, as [`EngineHandle::start`] does.
    pub fn shared(
        folder: &Path,
        options: &EngineOptions,
        progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<Self> {
        let Ok(place) = folder.canonicalize() else { return Self::start(folder, options, progress) };
        let stamp = FolderStamp::of(&place)?;
        let running = Running::of(place, stamp, options);
        let mut known = running.lock();
        if let Some(engine) = known.upgrade().map(Self::from_shared).filter(Self::is_ready) {
            return Ok(engine);
        }
        let engine = Self::start(folder, options, progress)?;
        *known = engine.downgrade();
        Ok(engine)
    }
}
