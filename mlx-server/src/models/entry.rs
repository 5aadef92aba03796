//! A served model: its names, its folder, and the engine while it is loaded.

mod lease;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use mlx_core::engine::{Engine, EngineOptions, FolderStamp};
use mlx_core::inspect::needed_memory;
use mlx_core::model::ModelSpec;
use mlx_core::sampling::SamplingOptions;
use mlx_core::{Abilities, ModelFolder, model};
use tokio::task::spawn_blocking;

use super::engine_key::EngineKey;
use super::released::Released;
use super::residence::Residence;
pub(crate) use lease::Lease;

/// A served model. An adapter is a separate entry.
pub(crate) struct Entry {
    pub(super) name: String,
    pub(super) aliases: Vec<String>,
    pub(super) folder: PathBuf,
    /// The time that it stays loaded.
    pub(super) residence: Residence,
    /// All adapters of the folder's engine.
    pub(super) adapters: Vec<PathBuf>,
    /// For an adapter: its index in `adapters`, and the name of the base model.
    pub(super) adapter: Option<(usize, String)>,
    /// True if only profiles brought the model here.
    pub(super) of_profile: bool,
    /// The size of the loaded weights in bytes, from the headers of their files.
    pub(super) weight_bytes: AtomicU64,
    /// The model's shape, from its config and the headers of its files. `None` if they are invalid, which loading reports.
    pub(super) spec: Option<ModelSpec>,
    /// The sampling defaults of the checkpoint.
    pub(super) sampling: SamplingOptions,
    /// The quantization of a GGUF file; `None` for a folder.
    pub(super) quantization: Option<&'static str>,
    /// The tasks that the model is made for. `None` if its config is invalid, which loading reports.
    pub(super) abilities: Option<Abilities>,
    /// The model's capabilities, read on first use.
    pub(super) capabilities: OnceLock<Capabilities>,
    /// The modification time of the folder, in seconds since 1970.
    pub(super) created: u64,
    /// A hash of the names and sizes of the files, and of the configuration.
    pub(super) digest: String,
    /// Locked while the model is loading.
    pub(super) loading: tokio::sync::Mutex<()>,
    pub(super) is_loading: AtomicBool,
    pub(super) slot: Mutex<Option<Arc<Loaded>>>,
}

/// A load in progress.
pub(super) struct LoadGuard<'a> {
    entry: &'a Entry,
    _lock: tokio::sync::MutexGuard<'a, ()>,
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        self.entry.is_loading.store(false, Ordering::Relaxed);
    }
}

/// A loaded model.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) engine: Engine,
    /// The state of the model's files when they were read.
    stamp: Arc<FolderStamp>,
    key: EngineKey,
    /// The memory budget of the engine in bytes.
    reserved: u64,
    last_used: Mutex<Instant>,
    /// Notified when a lease ends.
    released: Arc<Released>,
}

/// The state of a model in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelState {
    Unloaded,
    Loading,
    Loaded {
        /// True while requests use it.
        is_used: bool,
    },
}

/// The capabilities of a model that generates text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(crate) struct Capabilities {
    /// True if the model has a chat template.
    pub(crate) chat: bool,
    /// True if the model supports tool calls.
    pub(crate) tools: bool,
    /// True if the model takes images, as far as its folder shows.
    pub(crate) vision: bool,
    /// True if the model takes audio in chats, as far as its folder shows.
    pub(crate) audio: bool,
    /// True if the model marks its reasoning.
    pub(crate) reasoning: bool,
}

impl Loaded {
    fn last_used(&self) -> Instant {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsRef<Self> for Entry {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Entry {
    /// Returns the name of the model.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The quantization of a GGUF file; `None` for a folder.
    pub(crate) fn quantization(&self) -> Option<&'static str> {
        self.quantization
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the size of the loaded weights in bytes.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.weight_bytes.load(Ordering::Relaxed)
    }

    /// Reads the file sizes again, since they may have changed. Returns the key of an engine with these options, and the memory that it
    /// needs.
    pub(super) fn measure(&self, options: &EngineOptions) -> (EngineKey, u64) {
        let bytes = weight_bytes(&self.folder, options);
        self.weight_bytes.store(bytes.unwrap_or_else(|_| self.weight_bytes()), Ordering::Relaxed);
        // Loading reports an invalid folder.
        let needed = needed_memory(&self.folder, options).unwrap_or_else(|_| self.weight_bytes());
        let key = EngineKey {
            folder: self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone()),
            adapters: options.adapters.clone(),
            stamp: self.stamp().ok(),
        };
        (key, needed)
    }

    /// Waits for a load of this model in progress, and blocks further loads while the guard exists.
    pub(super) async fn loading(&self) -> LoadGuard<'_> {
        let lock = self.loading.lock().await;
        self.is_loading.store(true, Ordering::Relaxed);
        LoadGuard { entry: self, _lock: lock }
    }

    /// Returns the options of this model's engine: the server's options, with the adapters.
    pub(super) fn options(&self, options: &EngineOptions) -> EngineOptions {
        EngineOptions { adapters: self.adapters.clone(), ..options.clone() }
    }

    /// Returns the engine handle for requests to this name, which may be an adapter.
    pub(super) fn handle(&self, engine: &Engine) -> mlx_core::Result<Engine> {
        self.adapter.as_ref().map_or(Ok(engine.clone()), |(index, _)| engine.with_adapter(*index))
    }

    /// Returns the current state of the model's files.
    pub(super) fn stamp(&self) -> mlx_core::Result<FolderStamp> {
        FolderStamp::of(&self.folder)?.with(&self.adapters)
    }

    /// Returns true if clients can use this name for the model.
    pub(super) fn is_called(&self, name: &str) -> bool {
        !self.is_hidden() && self.has_name(name)
    }

    /// Returns true for the adapter of a profile. Clients name the profile instead.
    pub(super) fn is_hidden(&self) -> bool {
        self.of_profile && self.adapter.is_some()
    }

    /// Returns true if this is the model with the adapter in this folder.
    pub(super) fn adapts(&self, model: &Self, adapter: &Path) -> bool {
        let folder = self.adapter.as_ref().and_then(|(index, _)| self.adapters.get(*index));
        folder.is_some_and(|folder| folder == adapter) && self.is_at(&model.folder)
    }

    /// Returns the name of the model without an adapter.
    pub(crate) fn base_name(&self) -> &str {
        self.adapter.as_ref().map_or(&self.name, |(_, name)| name)
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// Returns true if the model is in memory.
    pub(crate) fn is_loaded(&self) -> bool {
        self.with_loaded(|_| ()).is_some()
    }

    /// Returns the model's shape, if its files are valid.
    pub(crate) fn spec(&self) -> Option<&ModelSpec> {
        self.spec.as_ref()
    }

    /// Returns the tasks that the model is made for, if its config is valid.
    pub(crate) fn abilities(&self) -> Option<Abilities> {
        self.abilities
    }

    /// Returns the names of those tasks, as Ollama spells them.
    pub(crate) fn tasks(&self) -> Vec<&'static str> {
        let Abilities { chats, embeds, reranks, transcribes } = self.abilities.unwrap_or_default();
        let known = [
            ("completion", chats),
            ("embedding", embeds),
            ("rerank", reranks),
            ("transcription", transcribes),
        ];
        known.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
    }

    /// Returns the modification time of the folder, in seconds since 1970.
    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    /// Returns the hexadecimal hash of the names and sizes of the files, and of the configuration.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the model's capabilities. The first call reads the tokenizer and the template, which can take seconds.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let of = |folder: &ModelFolder| Capabilities {
            chat: folder.template.is_some(),
            tools: folder.tools.is_ok(),
            vision: folder.images.is_ok(),
            audio: folder.audio.is_ok(),
            reasoning: folder.format.has_thoughts(),
        };
        let read = || match self.with_loaded(|loaded| of(loaded.engine.folder())) {
            Some(capabilities) => capabilities,
            None => {
                ModelFolder::open(&self.folder).map_or_else(|_| Capabilities::default(), |folder| of(&folder))
            }
        };
        let capabilities = *self.capabilities.get_or_init(read);
        // A tower may also fail to load, because it is damaged or memory is short.
        let towers = self.with_loaded(|loaded| {
            (loaded.engine.image_processor().is_ok(), loaded.engine.audio_processor().is_ok())
        });
        let (vision, audio) = towers.unwrap_or((capabilities.vision, capabilities.audio));
        Capabilities { vision, audio, ..capabilities }
    }

    /// Returns a lease of the loaded model, if its engine is ready. After its files have changed, a model is leased only while it is in use. So
    /// one answer never mixes two versions of a model.
    pub(super) async fn lease(self: &Arc<Self>) -> Option<Lease> {
        let stamp = {
            let slot = self.slot();
            let loaded = slot.as_ref().filter(|loaded| loaded.engine.is_ready())?;
            if is_used(loaded) {
                return Some(Lease::new(Arc::clone(loaded)));
            }
            Arc::clone(&loaded.stamp)
        };
        // A folder on a slow disk must not block other requests.
        let entry = Arc::clone(self);
        let now = spawn_blocking(move || entry.stamp()).await.ok()?;
        let slot = self.slot();
        let loaded = slot.as_ref().filter(|loaded| loaded.engine.is_ready())?;
        let is_stale = now.is_ok_and(|now| now != *stamp);
        (is_used(loaded) || !is_stale).then(|| Lease::new(Arc::clone(loaded)))
    }

    /// Stores a loaded model, with the key and the memory budget of its engine. Returns a lease.
    pub(super) fn set_loaded(
        &self,
        engine: Engine,
        stamp: FolderStamp,
        (key, reserved): (EngineKey, u64),
        released: &Arc<Released>,
    ) -> Lease {
        let (name, stamp, last_used) = (self.name.clone(), Arc::new(stamp), Mutex::new(Instant::now()));
        let released = Arc::clone(released);
        let loaded = Arc::new(Loaded { name, engine, stamp, key, reserved, last_used, released });
        *self.slot() = Some(Arc::clone(&loaded));
        Lease::new(loaded)
    }

    /// Returns the key and the memory budget of a loaded model's engine.
    pub(super) fn reserved_bytes(&self) -> Option<(EngineKey, u64)> {
        self.with_loaded(|loaded| (loaded.key.clone(), loaded.reserved))
    }

    /// Calls `read` with the loaded model, if it is loaded.
    pub(super) fn with_loaded<T>(&self, read: impl FnOnce(&Loaded) -> T) -> Option<T> {
        self.slot().as_deref().map(read)
    }

    /// Returns the time of the last use of a loaded model. `None` if the model is not loaded, in use or pinned.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let slot = self.slot();
        let loaded = slot.as_ref().filter(|loaded| !is_used(loaded) && !self.residence.is_pinned())?;
        Some(loaded.last_used())
    }

    /// Returns the time at which a loaded model is to be unloaded, if no further request comes. `default` is the server's time.
    pub(crate) fn end(&self, default: Option<Duration>) -> Option<Instant> {
        let last_used = self.with_loaded(|_| ()).map(|()| self.idle_since().unwrap_or_else(Instant::now))?;
        self.residence.end(last_used, default)
    }

    /// Returns the state of the model in memory.
    pub(crate) fn state(&self) -> ModelState {
        match self.slot().as_ref() {
            Some(loaded) => ModelState::Loaded { is_used: is_used(loaded) },
            None if self.is_loading.load(Ordering::Relaxed) => ModelState::Loading,
            None => ModelState::Unloaded,
        }
    }

    /// Returns true if the model is neither loaded nor loading.
    pub(super) fn is_absent(&self) -> bool {
        self.state() == ModelState::Unloaded
    }

    /// Returns true if the model is only unloaded on request.
    pub(crate) fn is_pinned(&self) -> bool {
        self.residence.is_pinned()
    }

    /// Returns true if the model's folder is this one, by another path.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        path.canonicalize().is_ok_and(|path| self.is_at_canonical(&path))
    }

    /// Like [`Self::is_at`], for a canonical path.
    pub(super) fn is_at_canonical(&self, path: &Path) -> bool {
        self.folder.canonicalize().is_ok_and(|own| own == path)
    }

    /// Unloads the model unless it is in use.
    pub(super) async fn unload(&self, reason: &str) {
        let unused = self.slot().take_if(|loaded| !is_used(loaded));
        if let Some(loaded) = unused {
            tracing::info!(model = self.name, reason, "a model is unloaded");
            self.residence.reset();
            // Dropping an engine blocks until its thread ends, so this must not run on an async thread.
            spawn_blocking(move || drop(loaded)).await.ok();
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Loaded>>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if leases exist, besides the entry's own reference.
fn is_used(loaded: &Arc<Loaded>) -> bool {
    Arc::strong_count(loaded) > 1
}

/// Returns the size of the weights in `folder` with the adapters of `options`, in bytes. Fails if the adapters do not fit the model.
pub(super) fn weight_bytes(folder: &Path, options: &EngineOptions) -> mlx_core::Result<u64> {
    let survey = |policy| model::inspect_adapted(folder, &options.adapters, policy);
    match options.weights().and_then(survey) {
        Ok((spec, ..)) => return Ok(spec.weight_bytes),
        Err(error) if !options.adapters.is_empty() => return Err(error),
        Err(_) => {}
    }
    Ok(file_bytes(folder))
}

/// Returns the size of the weight files in bytes. Loading reports invalid files.
pub(super) fn file_bytes(folder: &Path) -> u64 {
    if folder.is_file() {
        return folder.metadata().map_or(0, |file| file.len());
    }
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let weights = files.filter(|file| file.path().extension().is_some_and(|end| end == "safetensors"));
    weights.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}
