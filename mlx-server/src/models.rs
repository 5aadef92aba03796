//! The models of the server. They are found by name, loaded on demand, and unloaded when they are idle or another model needs the memory.
//! Invariant: a model with a [`Lease`] stays loaded.

mod catalog;
mod configured;
mod engine_key;
mod entry;
mod memory;
mod object;
mod profile_file;
mod profiles;
mod purpose;
mod released;
mod residence;
mod stay;
mod without_folders;

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use mlx_core::Error;
use mlx_core::backend::default_memory_budget;
use mlx_core::engine::{Engine, EngineOptions, Engines, Outage};
use mlx_engine_process::Program;
use tokio::task::spawn_blocking;

use catalog::{Catalog, Search};
pub(crate) use entry::{Entry, Lease, Loaded};
use memory::{Deadline, Demand, ModelMemory, Reservation};
use profiles::Profiles;
pub(crate) use profiles::Served;
pub(crate) use purpose::Purpose;
pub(crate) use residence::KeepAlive;
pub(crate) use without_folders::without_folders;

use crate::config::{ModelConfig, StartError};
use crate::error::ApiError;
use crate::metrics::ModelStats;
use crate::protocol::openai::models::ModelObject;
use mlx_options::{ByteSize, Seconds, describe};

/// All models of the server, loaded or not.
pub(crate) struct Models {
    catalog: Arc<Catalog>,
    profiles: Profiles,
    options: EngineOptions,
    engines: Arc<Engines>,
    /// The program of the engines' processes; `None` if they run in this one.
    program: Option<Program>,
    memory: Arc<ModelMemory>,
    idle: Option<Duration>,
    /// The reason that the last load of a divided model failed: a worker is unavailable.
    outage: std::sync::Mutex<Option<String>>,
}

impl Models {
    /// Locates the model folders without loading them.
    pub(crate) fn open(config: &ModelConfig, options: EngineOptions) -> Result<Self, StartError> {
        let profiles = Profiles::open(config.profiles.as_deref());
        let profiles = profiles.map_err(|reason| StartError::new("--profiles", reason))?;
        let entries = configured::all(config, &profiles.all(), &options)?;
        for entry in &entries {
            if config.models_budget.is_some_and(|budget| entry.weight_bytes() > budget.0) {
                let need = ByteSize(entry.weight_bytes());
                let reason = format!("{} alone needs {need}; raise the budget", entry.name());
                return Err(StartError::new("--models-budget", reason));
            }
        }
        let budget = budget(config, &options)?;
        let program = config.engine_program.clone();
        let folder =
            |entry: &Entry| entry.folder().canonicalize().unwrap_or_else(|_| entry.folder().to_owned());
        let folders = entries.iter().map(folder).collect::<BTreeSet<_>>().len();
        let folders = config.loaded_models.unwrap_or(folders);
        // The workers hold the parts of one model.
        let other = options.workers.is_none().then(|| options.clone());
        let searches = config.all_models.unwrap_or(true) && other.is_some();
        let search = || Search { folders: config.models_dir.clone() };
        Ok(Self {
            catalog: Arc::new(Catalog::new(entries, other, searches.then(search))),
            profiles,
            options,
            engines: Arc::default(),
            program,
            memory: ModelMemory::new(budget, folders),
            idle: config.idle_timeout.map(Seconds::duration),
            outage: std::sync::Mutex::default(),
        })
    }

    /// Like [`Self::lease`], for a request with this task. Rejects a model that is made for another one before it is loaded.
    pub(crate) async fn lease_for(
        self: &Arc<Self>,
        purpose: Purpose,
        name: Option<&str>,
    ) -> Result<Lease, ApiError> {
        let Served { entry, profile } = self.find(name).await?;
        entry.abilities().map_or(Ok(()), |abilities| purpose.check(entry.name(), abilities))?;
        Ok(self.lease_entry(entry).await?.with_profile(profile))
    }

    /// Returns a lease of the model with this name, or of the first model. Loads the model if necessary.
    pub(crate) async fn lease(self: &Arc<Self>, name: Option<&str>) -> Result<Lease, ApiError> {
        let Served { entry, profile } = self.find(name).await?;
        Ok(self.lease_entry(entry).await?.with_profile(profile))
    }

    async fn lease_entry(self: &Arc<Self>, entry: Arc<Entry>) -> Result<Lease, ApiError> {
        if let Some(lease) = entry.lease().await {
            return Ok(lease);
        }
        if let Some(outage) = self.failed_load() {
            // The server reconnects to the worker automatically.
            return Err(Error::Distributed(outage).into());
        }
        self.begin_load(entry).await
    }

    /// Loads all models of the flags that are not loaded yet.
    pub(crate) async fn load_all(self: &Arc<Self>) -> Result<(), ApiError> {
        for entry in self.catalog.given() {
            if entry.with_loaded(|loaded| loaded.engine.is_ready()) != Some(true) {
                self.begin_load(Arc::clone(entry)).await?;
            }
        }
        Ok(())
    }

    async fn begin_load(self: &Arc<Self>, entry: Arc<Entry>) -> Result<Lease, ApiError> {
        let models = Arc::clone(self);
        // A separate task, so that a disconnecting client does not abort the load.
        let load = tokio::spawn(async move {
            let lease = models.load(&entry).await;
            if lease.is_err() && !entry.is_loaded() {
                // A wish to unload the model at once must not meet the next load.
                entry.residence.reset();
            }
            lease
        });
        load.await.unwrap_or_else(|_| Err(ApiError::failed("loading the model was interrupted")))
    }

    /// Returns the profile or the model with this name or alias, which is searched on this machine if it is not known. Without a name, returns
    /// the first model.
    async fn find(&self, name: Option<&str>) -> Result<Served, ApiError> {
        let Some(name) = name else {
            let first = self.catalog.all().into_iter().next().ok_or_else(|| ApiError::no_model("", &[]));
            return Ok(Served { entry: first?, profile: None });
        };
        if let Some(profile) = self.profiles.find(name) {
            let entry = self.model_of(&profile).await;
            let entry = entry.ok_or_else(|| ApiError::no_model_of_profile(name, &profile.model))?;
            return Ok(Served { entry, profile: Some(profile) });
        }
        let entry = self.catalog.find(name).await.ok_or_else(|| {
            let (known, profiles) = (self.catalog.all(), self.profiles.all());
            let models = known.iter().filter(|entry| !entry.is_hidden()).map(|entry| entry.name());
            let known: Vec<&str> =
                models.chain(profiles.iter().map(|profile| profile.name.as_str())).collect();
            ApiError::no_model(name, &known)
        });
        Ok(Served { entry: entry?, profile: None })
    }

    /// Returns all known models.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.catalog.all()
    }

    /// Returns all models, after a search for new ones, and then the profiles whose models exist.
    pub(crate) async fn served(&self) -> Vec<Served> {
        self.catalog.refresh().await;
        let models = self.catalog.all().into_iter().filter(|entry| !entry.is_hidden());
        let mut served: Vec<Served> = models.map(|entry| Served { entry, profile: None }).collect();
        for profile in self.profiles.all().iter() {
            if let Some(entry) = self.model_of(profile).await {
                served.push(Served { entry, profile: Some(Arc::clone(profile)) });
            }
        }
        served
    }

    /// Returns the model with this name or alias.
    pub(crate) async fn entry(&self, name: &str) -> Result<Arc<Entry>, ApiError> {
        Ok(self.find(Some(name)).await?.entry)
    }

    /// Searches for models that were just added.
    pub(crate) async fn renew(&self) {
        self.catalog.renew().await;
    }

    /// Returns the API objects of all models.
    pub(crate) async fn list(&self) -> Vec<ModelObject> {
        self.served().await.iter().map(|served| served.object(self.idle)).collect()
    }

    /// Returns the API object of one model.
    pub(crate) async fn object(&self, name: &str) -> Result<ModelObject, ApiError> {
        Ok(self.find(Some(name)).await?.object(self.idle))
    }

    /// Returns the metrics of the models of the flags and of all loaded ones.
    pub(crate) fn stats(&self) -> Vec<ModelStats> {
        let model_stats = |entry: Arc<Entry>| ModelStats {
            name: entry.name().to_owned(),
            stats: entry.with_loaded(|loaded| loaded.engine.stats()),
        };
        let given = self.catalog.given().len();
        let all =
            self.catalog.all().into_iter().enumerate().map(|(index, entry)| (index, model_stats(entry)));
        all.filter(|(index, stats)| *index < given || stats.stats.is_some()).map(|it| it.1).collect()
    }

    /// Returns true if workers on other machines hold parts of the model.
    pub(crate) fn is_distributed(&self) -> bool {
        self.options.workers.is_some()
    }

    /// Returns true if all loaded engines are ready, including their workers. A divided model must be loaded, since only its engine knows the
    /// state of its workers.
    pub(crate) fn is_ready(&self) -> bool {
        let is_ready = |entry: &Arc<Entry>| entry.with_loaded(|loaded| loaded.engine.is_ready());
        let may_be_unloaded = !self.is_distributed();
        self.outage().is_none() && self.all().iter().all(|it| is_ready(it).unwrap_or(may_be_unloaded))
    }

    /// Returns the reason why a model cannot run requests now: a worker is missing, or an engine's process is started again.
    pub(crate) fn outage(&self) -> Option<Outage> {
        let of_engine = |entry: &Arc<Entry>| entry.with_loaded(|loaded| loaded.engine.outage()).flatten();
        self.failed_load().map(Outage::Machine).or_else(|| self.all().iter().find_map(of_engine))
    }

    fn failed_load(&self) -> Option<String> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets or clears the outage. Logs a new outage once.
    fn record_outage(&self, outage: Option<&str>) {
        let mut known = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = outage.filter(|message| known.as_deref() != Some(message)) {
            tracing::warn!(message, "the model is not loaded: a worker is unavailable");
        }
        *known = outage.map(str::to_owned);
    }

    /// Returns the memory budget of a model's engine. With several machines, each machine has a separate budget.
    fn engine_budget(&self, reservation: &Reservation) -> Option<u64> {
        if self.is_distributed() { self.options.memory_budget } else { Some(reservation.reserved()) }
    }

    /// Loads a model unless another request has just loaded it. Loads of different models run concurrently.
    async fn load(&self, entry: &Arc<Entry>) -> Result<Lease, ApiError> {
        // Requests that wait for the same load have a deadline of their own, not one after the other.
        let deadline = Deadline::for_load();
        let _first = entry.loading().await;
        if let Some(lease) = entry.lease().await {
            return Ok(lease);
        }
        let options = entry.options(&self.options);
        let (measured, of_entry) = (Arc::clone(entry), options.clone());
        let measured = spawn_blocking(move || measured.measure(&of_entry)).await;
        let (key, needed) =
            measured.map_err(|_| ApiError::failed("reading the model's folder was interrupted"))?;
        let demand = Demand { key, needed, limit: options.memory_budget };
        let reservation = self.memory.reserve(&self.catalog, entry, &demand, deadline).await?;
        let options = EngineOptions { memory_budget: self.engine_budget(&reservation), ..options };
        let (started, engines, program) =
            (Arc::clone(entry), Arc::clone(&self.engines), self.program.clone());
        let begin = Instant::now();
        let start = spawn_blocking(move || {
            let stamp = started.stamp()?;
            let folder = started.folder();
            let start = || match &program {
                Some(program) => mlx_engine_process::start(program, folder, &options, |_, _| {}),
                None => Engine::start(folder, &options, |_, _| {}),
            };
            let engine = engines.start_by(folder, &options, start)?;
            Ok((started.handle(&engine)?, stamp))
        });
        let started: Result<Result<_, Error>, _> = start.await;
        let (engine, stamp) = match started {
            Ok(Ok(started)) => started,
            Ok(Err(Error::Distributed(outage))) => {
                self.record_outage(Some(&outage));
                return Err(Error::Distributed(outage).into());
            }
            Ok(Err(error)) => {
                self.record_outage(None);
                return Err(load_error(entry, &describe(&error)));
            }
            Err(_) => return Err(load_error(entry, "loading it panicked")),
        };
        self.record_outage(None);
        let seconds = begin.elapsed().as_secs_f64();
        tracing::info!(model = entry.name(), seconds, "a model was loaded");
        Ok(entry.set_loaded(engine, stamp, reservation.key_and_bytes(), &self.memory.released))
    }
}

/// Returns the memory budget of all models together.
fn budget(config: &ModelConfig, options: &EngineOptions) -> Result<u64, StartError> {
    if let Some(budget) = config.models_budget {
        return Ok(budget.0);
    }
    let machine = default_memory_budget().map_err(|error| StartError::new("--models-budget", error))?;
    // A larger --memory-budget, which applies per model, raises the budget of all models.
    Ok(machine.max(options.memory_budget.unwrap_or(0)))
}

/// Logs a failed load. Returns the error for the client, without paths of this machine.
fn load_error(entry: &Entry, error: &str) -> ApiError {
    tracing::error!(model = entry.name(), error, "loading a model failed");
    let cause = without_folders(error, entry.folder());
    let message = format!("the model {:?} could not be loaded: {cause}", entry.name());
    ApiError::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, "model_not_loaded", message)
}
