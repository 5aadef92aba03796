//! One model of the server: its names, its folder, and the engine that runs it while it is loaded.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mlx_core::engine::{Engine, EngineOptions, FolderStamp};
use mlx_core::model::ModelSpec;
use mlx_core::{ModelFolder, hub, model};
use mlx_guide as guide;
use mlx_options::describe;
use tokio::task::spawn_blocking;

use crate::config::{ModelConfig, StartError};
use crate::protocol::openai::models::{ModelMeta, ModelObject};
use crate::time::rfc3339;

/// A model by name.
pub(crate) struct Entry {
    name: String,
    aliases: Vec<String>,
    folder: PathBuf,
    /// The adapters of that folder's engine.
    adapters: Vec<PathBuf>,
    /// The adapter that this name stands for, by its place among them, and the name of the model that it adapts.
    adapter: Option<(usize, String)>,
    /// Bytes that its weights will take in memory, from the headers of their files.
    weight_bytes: AtomicU64,
    /// What its config and the headers of its files say; none if they are wrong, which loading it reports.
    spec: Option<ModelSpec>,
    /// Whether it calls tools, thinks, and has a chat template, once it was asked for.
    abilities: OnceLock<Abilities>,
    /// When its folder was written, in seconds since 1970.
    created: u64,
    slot: Mutex<Option<Arc<Loaded>>>,
}

/// A model in memory.
pub(crate) struct Loaded {
    /// Its name.
    pub(crate) name: String,
    /// What runs it.
    pub(crate) engine: Engine,
    /// The state of its files when they were read.
    stamp: FolderStamp,
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
}

impl Loaded {
    fn new(name: &str, engine: Engine, stamp: FolderStamp) -> Self {
        Self { name: name.to_owned(), engine, stamp, last_used: Mutex::new(Instant::now()) }
    }

    /// Bytes that it uses, has reserved for requests, and keeps as prefixes.
    pub(super) fn bytes(&self) -> u64 {
        let stats = self.engine.stats();
        stats.reserved_bytes + stats.prefix_bytes
    }

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

    /// Reads the sizes again: the files may have changed.
    pub(super) fn weigh(&self, options: &EngineOptions) {
        let bytes = weight_bytes(&self.folder, options);
        self.weight_bytes.store(bytes.unwrap_or_else(|_| self.weight_bytes()), Ordering::Relaxed);
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

    /// What it can be asked for. The first call reads its tokenizer and template, which takes up to seconds.
    pub(crate) fn abilities(&self) -> Abilities {
        let of = |folder: &ModelFolder| Abilities {
            chats: folder.template.is_some(),
            calls_tools: folder.tools.is_ok(),
            sees: folder.images.is_ok(),
            thinks: folder.format.has_thoughts(),
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
    pub(super) fn lease(&self) -> Option<Lease> {
        let slot = self.slot();
        let loaded = slot.as_ref().filter(|loaded| loaded.engine.is_ready())?;
        let is_stale = || self.stamp().is_ok_and(|stamp| stamp != loaded.stamp);
        (Arc::strong_count(loaded) > 1 || !is_stale()).then(|| Lease(Arc::clone(loaded)))
    }

    /// Stores a loaded model and gives a lease of it.
    pub(super) fn fill(&self, engine: Engine, stamp: FolderStamp) -> Lease {
        let loaded = Arc::new(Loaded::new(&self.name, engine, stamp));
        *self.slot() = Some(Arc::clone(&loaded));
        Lease(loaded)
    }

    /// Calls `look` with the loaded model, if there is one.
    pub(super) fn peek<T>(&self, look: impl FnOnce(&Loaded) -> T) -> Option<T> {
        self.slot().as_deref().map(look)
    }

    /// Since when it is unused, if it is loaded and not in use.
    pub(super) fn unused_since(&self) -> Option<Instant> {
        let slot = self.slot();
        let loaded = slot.as_ref().filter(|loaded| Arc::strong_count(loaded) == 1)?;
        Some(loaded.last_used())
    }

    /// Frees its memory unless it is in use.
    pub(super) async fn unload(&self, reason: &str) {
        let unused = self.slot().take_if(|loaded| Arc::strong_count(loaded) == 1);
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

/// The models of the configuration.
pub(super) fn all(config: &ModelConfig, options: &EngineOptions) -> Result<Vec<Entry>, StartError> {
    let mut entries: Vec<Entry> = Vec::new();
    if config.model.is_empty() {
        tracing::info!("no model is named; {}", guide::NOTE);
        entries.push(open(guide::NAME, options)?);
    }
    for given in &config.model {
        let entry = open(given, options)?;
        if entries.iter().any(|other| other.name == entry.name) {
            let why = format!("{} is there twice; give one another name with NAME=MODEL", entry.name);
            return Err(StartError::about("--model", why));
        }
        entries.push(entry);
    }
    add_adapters(&mut entries, config, options)?;
    for given in &config.alias {
        let (alias, name) = given.split_once('=').unwrap_or((given, ""));
        if alias.is_empty() || entries.iter().any(|entry| entry.is_called(alias)) {
            return Err(StartError::about("--alias", format!("{given} gives no new name")));
        }
        match entries.iter_mut().find(|entry| entry.name == name) {
            Some(entry) => entry.aliases.push(alias.to_owned()),
            None => {
                return Err(StartError::about("--alias", format!("{given} is not ALIAS=NAME of a model")));
            }
        }
    }
    Ok(entries)
}

/// Adds the adapters of the first model, each by its name.
fn add_adapters(
    entries: &mut Vec<Entry>,
    config: &ModelConfig,
    options: &EngineOptions,
) -> Result<(), StartError> {
    let Some(base) = entries.first().filter(|_| !config.adapter.is_empty()) else { return Ok(()) };
    let (name, folder, created) = (base.name.clone(), base.folder.clone(), base.created);
    let spec = base.spec.clone();
    let fail = |error| StartError::about("--adapter", describe(&error));
    let (mut folders, mut adapted) = (Vec::new(), Vec::new());
    for given in &config.adapter {
        let (own, place) = given.split_once('=').unwrap_or(("", given));
        if own.is_empty() || entries.iter().any(|entry| entry.name == own) || adapted.contains(&own) {
            let why = format!("{given} gives no new name; the form is NAME=FOLDER");
            return Err(StartError::about("--adapter", why));
        }
        adapted.push(own);
        folders.push(hub::resolve_adapter(Path::new(place)).map_err(fail)?);
    }
    let with_adapters = EngineOptions { adapters: folders.clone(), ..options.clone() };
    // What is wrong with an adapter is said now. What is wrong with the model is said when it is loaded.
    let bytes = weight_bytes(&folder, &with_adapters).map_err(fail)?;
    // Names of one folder share an engine.
    let same = folder.canonicalize().ok();
    for entry in entries.iter_mut().filter(|entry| entry.folder.canonicalize().ok() == same) {
        entry.adapters.clone_from(&folders);
        entry.weight_bytes.store(bytes, Ordering::Relaxed);
    }
    let entry = |(place, own): (usize, &str)| Entry {
        name: own.to_owned(),
        aliases: Vec::new(),
        folder: folder.clone(),
        adapters: folders.clone(),
        adapter: Some((place, name.clone())),
        weight_bytes: AtomicU64::new(bytes),
        spec: spec.clone(),
        abilities: OnceLock::new(),
        created,
        slot: Mutex::new(None),
    };
    entries.extend(adapted.into_iter().enumerate().map(entry));
    Ok(())
}

fn open(given: &str, options: &EngineOptions) -> Result<Entry, StartError> {
    let named = given.split_once('=').filter(|(name, _)| !name.is_empty() && !Path::new(given).is_dir());
    let (name, place) = named.map_or((None, given), |(name, place)| (Some(name), place));
    let is_guide = place == guide::NAME;
    let folder = if is_guide { guide::folder() } else { hub::resolve(Path::new(place)) };
    let folder = folder.map_err(|error| StartError::about("--model", describe(&error)))?;
    let name = name.or(is_guide.then_some(guide::NAME));
    let Ok(metadata) = std::fs::metadata(folder.join("config.json")) else {
        let why = "is not a model folder: it has no config.json";
        return Err(StartError::about(format_args!("--model: {}", folder.display()), why));
    };
    let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let real = folder.canonicalize().ok();
    let last = || Some(real.as_ref()?.file_name()?.to_string_lossy().into_owned());
    let own = real.as_deref().and_then(hub::name_of).or_else(last);
    let spec = options.weights().and_then(|policy| model::survey(&folder, policy)).ok().map(|(spec, _)| spec);
    Ok(Entry {
        name: name.map(str::to_owned).or(own).unwrap_or_else(|| given.to_owned()),
        aliases: Vec::new(),
        weight_bytes: AtomicU64::new(
            spec.as_ref().map_or_else(|| file_bytes(&folder), |spec| spec.weight_bytes),
        ),
        spec,
        abilities: OnceLock::new(),
        adapters: Vec::new(),
        adapter: None,
        created: written.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        folder,
        slot: Mutex::new(None),
    })
}

/// Bytes of the weights in `folder` with the adapters of `options`; fails if there are some and they are not for such a model.
fn weight_bytes(folder: &Path, options: &EngineOptions) -> mlx_core::Result<u64> {
    let survey = |policy| model::survey_adapted(folder, &options.adapters, policy);
    match options.weights().and_then(survey) {
        Ok((spec, ..)) => return Ok(spec.weight_bytes),
        Err(error) if !options.adapters.is_empty() => return Err(error),
        Err(_) => {}
    }
    Ok(file_bytes(folder))
}

/// Bytes of the files of weights. Loading them reports what is wrong with them.
fn file_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let weights = files.filter(|file| file.path().extension().is_some_and(|end| end == "safetensors"));
    weights.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}
