//! The models that can be requested: those of the flags, and all others on this machine. Invariant: a model that is loaded or loading is
//! never dropped from the catalog.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mlx_core::engine::EngineOptions;
use mlx_hub::{Stores, has_gguf_extension};
use tokio::task::spawn_blocking;

use super::configured::{self, local_entry};
use super::entry::Entry;

/// The minimum time between two searches, since a client may ask for names that do not exist.
const PAUSE: Duration = Duration::from_secs(2);

/// All models.
pub(super) struct Catalog {
    /// The models of the flags.
    given: Vec<Arc<Entry>>,
    /// Other models that were found on this machine.
    found: Mutex<Vec<Arc<Entry>>>,
    /// The options of engines on other models; `None` if workers hold the only model.
    options: Option<EngineOptions>,
    /// The search for other models; `None` if only the models of the flags are served.
    search: Option<Search>,
    /// The end of the last search.
    searched: tokio::sync::Mutex<Option<Instant>>,
}

/// The folders of other models.
#[derive(Clone)]
pub(super) struct Search {
    /// Folders of models, besides the stores.
    pub(super) folders: Vec<PathBuf>,
}

impl Catalog {
    pub(super) fn new(given: Vec<Entry>, options: Option<EngineOptions>, search: Option<Search>) -> Self {
        let given = given.into_iter().map(Arc::new).collect();
        Self { given, found: Mutex::default(), options, search, searched: tokio::sync::Mutex::default() }
    }

    /// Returns the models of the flags.
    pub(super) fn given(&self) -> &[Arc<Entry>] {
        &self.given
    }

    /// Returns all known models, those of the flags first.
    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        self.given.iter().chain(found.iter()).cloned().collect()
    }

    /// Returns a known model.
    pub(super) fn known(&self, name: &str) -> Option<Arc<Entry>> {
        self.all().into_iter().find(|entry| entry.is_called(name))
    }

    /// Returns a known model by its name, or by a path or another name that `--model` takes.
    pub(super) fn located(&self, model: &str) -> Option<Arc<Entry>> {
        self.known(model).or_else(|| self.at(&configured::locate(model).ok()?))
    }

    fn at(&self, path: &Path) -> Option<Arc<Entry>> {
        let path = path.canonicalize().ok()?;
        self.all().into_iter().find(|entry| entry.adapter.is_none() && entry.is_at_canonical(&path))
    }

    /// Like [`Self::located`], also for a model that is not known yet. Reads files.
    pub(super) fn open(&self, model: &str) -> Option<Arc<Entry>> {
        if let Some(entry) = self.located(model) {
            return Some(entry);
        }
        let mut entry = configured::open(None, model, self.options.as_ref()?).ok()?;
        entry.of_profile = true;
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = found.iter().find(|other| other.is_at(entry.folder())) {
            return Some(Arc::clone(entry));
        }
        found.push(Arc::new(entry));
        found.last().cloned()
    }

    /// Returns a model, which is searched on this machine if it is not known.
    pub(super) async fn find(self: &Arc<Self>, name: &str) -> Option<Arc<Entry>> {
        if let Some(entry) = self.known(name) {
            return Some(entry);
        }
        self.refresh().await;
        self.known(name)
    }

    /// Like [`Self::refresh`], even if the last search has just ended.
    pub(super) async fn renew(self: &Arc<Self>) {
        *self.searched.lock().await = None;
        self.refresh().await;
    }

    /// Searches for models that were added or removed.
    pub(super) async fn refresh(self: &Arc<Self>) {
        let Some(search) = self.search.clone() else { return };
        let mut searched = self.searched.lock().await;
        if searched.is_some_and(|end| end.elapsed() < PAUSE) {
            return;
        }
        let catalog = Arc::clone(self);
        spawn_blocking(move || catalog.merge(&search)).await.ok();
        *searched = Some(Instant::now());
    }

    fn merge(&self, search: &Search) {
        let Some(options) = &self.options else { return };
        let listed = search.list();
        let removed = self.remove_outdated(&listed);
        // Ends the engines of outdated models, which takes time.
        drop(removed);
        let known = self.all();
        let mut names = Vec::new();
        let mut added = Vec::new();
        for (name, path) in &listed {
            if !known.iter().any(|entry| entry.has_name(name)) && !names.contains(name) {
                added.extend(local_entry(name, path, options).map(|entry| {
                    // Names of the same folder share an engine.
                    let adapted = known.iter().find(|it| !it.adapters.is_empty() && it.is_at(path));
                    let adapters = adapted.map_or_else(Vec::new, |it| it.adapters.clone());
                    Arc::new(Entry { adapters, ..entry })
                }));
                names.push(name.clone());
            }
        }
        self.found.lock().unwrap_or_else(PoisonError::into_inner).extend(added);
    }

    /// Removes models that no longer exist, unless they are loaded. Removes unused models whose name now refers to other files.
    fn remove_outdated(&self, listed: &[(String, PathBuf)]) -> Vec<Arc<Entry>> {
        let is_outdated = |entry: &mut Arc<Entry>| {
            let mut named = listed.iter().filter(|(name, _)| entry.has_name(name)).peekable();
            let is_replaced = named.peek().is_some() && named.all(|(_, path)| entry.folder() != path);
            let is_listed = listed.iter().any(|(name, path)| entry.has_name(name) && entry.folder() == path);
            let is_used = Arc::strong_count(entry) > 1 || entry.of_profile;
            let may_be_unloaded = !entry.is_loaded() || is_replaced && entry.idle_since().is_some();
            !is_used && !is_listed && may_be_unloaded
        };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.extract_if(.., is_outdated).collect()
    }
}

impl Search {
    /// Returns the names and paths of the models that can be used.
    fn list(&self) -> Vec<(String, PathBuf)> {
        let stores = Stores::from_env().and_then(|stores| stores.list());
        let stores =
            stores.inspect_err(|error| tracing::warn!(%error, "the models of this machine are not listed"));
        let usable = stores.unwrap_or_default().into_iter().filter(|model| model.problem.is_none());
        let own = self.folders.iter().flat_map(|folder| own_models(folder));
        usable.map(|model| (model.name, model.path)).chain(own).collect()
    }
}

/// Returns the models in a folder: its folders with a config.json, and its GGUF files.
fn own_models(folder: &Path) -> Vec<(String, PathBuf)> {
    let paths = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
    let models = paths.filter(|path| path.join("config.json").is_file() || has_gguf_extension(path));
    let named = |path: PathBuf| {
        let name = if path.is_file() { path.file_stem() } else { path.file_name() };
        Some((name?.to_str()?.to_owned(), path))
    };
    let mut models: Vec<_> = models.filter_map(named).collect();
    models.sort();
    models
}

#[cfg(test)]
mod tests {
    use mlx_core::backend::Backend;

    use super::*;

    #[test]
    fn an_unused_model_is_removed_when_its_name_stands_for_other_files() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/encoders");
        let paths = ["bert-f32", "roberta-f32"].map(|name| golden.join(name));
        let options = EngineOptions { backend: Some(Backend::CPU), ..EngineOptions::default() };
        let catalog = Catalog::new(Vec::new(), None, None);
        let found = local_entry("a", &paths[0], &options).expect("it is a model");
        catalog.found.lock().expect("no panic").push(Arc::new(found));
        let of = |path: &PathBuf| [("a".to_owned(), path.clone())];
        let same = [of(&paths[1]), of(&paths[0])].concat();
        assert!(catalog.remove_outdated(&same).is_empty(), "one of two files of this name");
        let used = catalog.known("a");
        assert!(catalog.remove_outdated(&of(&paths[1])).is_empty(), "it is in use");
        drop(used);
        assert_eq!(catalog.remove_outdated(&of(&paths[1])).len(), 1);
        assert!(catalog.all().is_empty());
    }
}
