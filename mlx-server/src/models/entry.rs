//! One model of the server: its names, its folder, and the engine that runs it while it is loaded.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use mlx_core::engine::{Engine, EngineOptions, FolderStamp};
use mlx_core::inspect::needed_memory;
use mlx_core::model::ModelSpec;
use mlx_core::sampling::SamplingOptions;
use mlx_core::{ModelFolder, model};
use tokio::task::spawn_blocking;

use crate::protocol::openai::models::{ModelMeta, ModelObject, chat_sampling};
use crate::time::rfc3339;

/// A model by name.
pub(crate) struct Entry {
    pub(super) name: String,
    pub(super) aliases: Vec<String>,
    pub(super) folder: PathBuf,
    /// The adapters of that folder's engine.
    pub(super) adapters: Vec<PathBuf>,
    /// The adapter that this name stands for, by its place among them, and the name of the model that it adapts.
    pub(super) adapter: Option<(usize, String)>,
    /// Bytes that its weights will take in memory, from the headers of their files.
    pub(super) weight_bytes: AtomicU64,
    /// What its config and the headers of its files say; none if they are wrong, which loading it reports.
    pub(super) spec: Option<ModelSpec>,
    /// The sampling values of its checkpoint.
    pub(super) sampling: SamplingOptions,
    /// Whether it calls tools, thinks, and has a chat template, once it was asked for.
    pub(super) abilities: OnceLock<Abilities>,
    /// When its folder was written, in seconds since 1970.
    pub(super) created: u64,
    /// A hash of its files' names and sizes and of its configuration.
    pub(super) digest: String,
    /// Held while it is loaded.
    pub(super) loading: tokio::sync::Mutex<()>,
    pub(super) slot: Mutex<Option<Arc<Loaded>>>,
}

/// A model in memory.
pub(crate) struct Loaded {
    /// Its name.
    pub(crate) name: String,
    /// What runs it.
    pub(crate) engine: Engine,
    /// The state of its files when they were read.
    stamp: Arc<FolderStamp>,
    /// Its canonical folder.
    folder: PathBuf,
    /// Its memory budget in bytes.
    promised: u64,
    last_used: Mutex<Instant>,
}

/// What a model can be asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(crate) struct Abilities {
    /// It has a chat template.
    pub(crate) chats: bool,
    /// It calls tools.
    pub(crate) calls_tools: bool,
    /// Whether it can be given pictures, as far as its folder says.
    pub(crate) sees: bool,
    /// It marks its thoughts.
    pub(crate) thinks: bool,
    /// It is an embedding model, according to its sentence-transformers files.
    pub(crate) embeds: bool,
}

impl Loaded {
    fn last_used(&self) -> Instant {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The use of a loaded model: it stays in memory until this is dropped.
pub(crate) struct Lease(Arc<Loaded>);

impl Clone for Lease {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.0.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Entry {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Bytes that its weights take in memory.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.weight_bytes.load(Ordering::Relaxed)
    }

    /// Reads the sizes of its files again: they may have changed. Returns its canonical folder, and the memory that an engine with these
    /// options needs.
    pub(super) fn measure(&self, options: &EngineOptions) -> (PathBuf, u64) {
        let bytes = weight_bytes(&self.folder, options);
        self.weight_bytes.store(bytes.unwrap_or_else(|_| self.weight_bytes()), Ordering::Relaxed);
        // Loading reports a faulty folder.
        let needed = needed_memory(&self.folder, options).unwrap_or_else(|_| self.weight_bytes());
        (self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone()), needed)
    }

    /// Waits for a load of this model in progress, and blocks further loads while the guard exists.
    pub(super) async fn loading(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.loading.lock().await
    }

    /// The options of its engine, of which the server has these for all.
    pub(super) fn options(&self, options: &EngineOptions) -> EngineOptions {
        EngineOptions { adapters: self.adapters.clone(), ..options.clone() }
    }

    /// The handle of this name's requests.
    pub(super) fn handle(&self, engine: &Engine) -> mlx_core::Result<Engine> {
        self.adapter.as_ref().map_or(Ok(engine.clone()), |(place, _)| engine.with_adapter(*place))
    }

    /// The state of its files.
    pub(super) fn stamp(&self) -> mlx_core::Result<FolderStamp> {
        FolderStamp::of(&self.folder)?.with(&self.adapters)
    }

    pub(super) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }

    fn context(&self) -> Option<usize> {
        self.spec.as_ref().map(|spec| spec.context_length)
    }

    /// As clients see it.
    pub(crate) fn object(&self) -> ModelObject {
        ModelObject {
            id: self.name.clone(),
            object: "model",
            created: self.created,
            owned_by: "local",
            loaded: self.is_loaded(),
            aliases: self.aliases.clone(),
            parent: self.adapter.as_ref().map(|(_, name)| name.clone()),
            kind: "model",
            display_name: self.name.clone(),
            created_at: rfc3339(self.created),
            max_model_len: self.context(),
            max_input_tokens: self.context(),
            max_tokens: self.context(),
            chat_sampling: chat_sampling(&self.sampling),
            meta: self.spec.as_ref().map(|spec| ModelMeta {
                n_ctx_train: spec.context_length,
                n_vocab: spec.vocab_size,
                n_params: spec.parameters,
                size: spec.file_bytes,
            }),
        }
    }

    /// Whether it is in memory now.
    pub(crate) fn is_loaded(&self) -> bool {
        self.peek(|_| ()).is_some()
    }

    /// What its files say of it.
    pub(crate) fn spec(&self) -> Option<&ModelSpec> {
        self.spec.as_ref()
    }

    /// When its folder was written, in seconds since 1970.
    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    /// A hash of its files' names and sizes and of its configuration, in hexadecimal digits.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// What it can be asked for. The first call reads its tokenizer and template, which takes up to seconds.
    pub(crate) fn abilities(&self) -> Abilities {
        let of = |folder: &ModelFolder| Abilities {
            chats: folder.template.is_some(),
            calls_tools: folder.tools.is_ok(),
            sees: folder.images.is_ok(),
            thinks: folder.format.has_thoughts(),
            embeds: folder.path.join("1_Pooling/config.json").is_file(),
        };
        let read = || match self.peek(|loaded| of(loaded.engine.folder())) {
            Some(abilities) => abilities,
            None => {
                ModelFolder::open(&self.folder).map_or_else(|_| Abilities::default(), |folder| of(&folder))
            }
        };
        let abilities = *self.abilities.get_or_init(read);
        // The files say nothing of a tower that is damaged or has no room.
        let sees = self.peek(|loaded| loaded.engine.image_processor().is_ok());
        Abilities { sees: sees.unwrap_or(abilities.sees), ..abilities }
    }

    /// A lease of the loaded model, if it runs. After its files have changed it is leased only while it is in use, so that no answer is
    /// of two models.
    pub(super) async fn lease(self: &Arc<Self>) -> Option<Lease> {
        let stamp = {
            let slot = self.slot();
            let loaded = slot.as_ref().filter(|loaded| loaded.engine.is_ready())?;
            if is_used(loaded) {
                return Some(Lease(Arc::clone(loaded)));
            }
            Arc::clone(&loaded.stamp)
        };
        // A folder on a slow disk must not hold up the other requests.
        let entry = Arc::clone(self);
        let now = spawn_blocking(move || entry.stamp()).await.ok()?;
        let slot = self.slot();
        let loaded = slot.as_ref().filter(|loaded| loaded.engine.is_ready())?;
        let is_stale = now.is_ok_and(|now| now != *stamp);
        (is_used(loaded) || !is_stale).then(|| Lease(Arc::clone(loaded)))
    }

    /// Stores a loaded model, with its canonical folder and its memory budget. Returns a lease.
    pub(super) fn set_loaded(
        &self,
        engine: Engine,
        stamp: FolderStamp,
        (folder, promised): (PathBuf, u64),
    ) -> Lease {
        let (name, stamp, last_used) = (self.name.clone(), Arc::new(stamp), Mutex::new(Instant::now()));
        let loaded = Arc::new(Loaded { name, engine, stamp, folder, promised, last_used });
        *self.slot() = Some(Arc::clone(&loaded));
        Lease(loaded)
    }

    /// Returns the canonical folder and the memory budget of a loaded model.
    pub(super) fn promised_bytes(&self) -> Option<(PathBuf, u64)> {
        self.peek(|loaded| (loaded.folder.clone(), loaded.promised))
    }

    /// Calls `look` with the loaded model, if there is one.
    pub(super) fn peek<T>(&self, look: impl FnOnce(&Loaded) -> T) -> Option<T> {
        self.slot().as_deref().map(look)
    }

    /// Since when it is unused, if it is loaded and not in use.
    pub(super) fn unused_since(&self) -> Option<Instant> {
        let slot = self.slot();
        let loaded = slot.as_ref().filter(|loaded| !is_used(loaded))?;
        Some(loaded.last_used())
    }

    /// Frees its memory unless it is in use.
    pub(super) async fn unload(&self, reason: &str) {
        let unused = self.slot().take_if(|loaded| !is_used(loaded));
        if let Some(loaded) = unused {
            tracing::info!(model = self.name, reason, "a model is unloaded");
            // Dropping an engine waits for its thread, which an async thread must not.
            spawn_blocking(move || drop(loaded)).await.ok();
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Loaded>>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if leases exist besides the entry's own reference.
fn is_used(loaded: &Arc<Loaded>) -> bool {
    Arc::strong_count(loaded) > 1
}

/// Bytes of the weights in `folder` with the adapters of `options`; fails if there are some and they are not for such a model.
pub(super) fn weight_bytes(folder: &Path, options: &EngineOptions) -> mlx_core::Result<u64> {
    let survey = |policy| model::survey_adapted(folder, &options.adapters, policy);
    match options.weights().and_then(survey) {
        Ok((spec, ..)) => return Ok(spec.weight_bytes),
        Err(error) if !options.adapters.is_empty() => return Err(error),
        Err(_) => {}
    }
    Ok(file_bytes(folder))
}

/// Bytes of the files of weights. Loading them reports what is wrong with them.
pub(super) fn file_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let weights = files.filter(|file| file.path().extension().is_some_and(|end| end == "safetensors"));
    weights.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}
