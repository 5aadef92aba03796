//! The public handle of an engine. It starts the engine's thread, checks requests and submits them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;

use super::admission::Submission;
use super::canceller::Canceller;
use super::constraint::Grammars;
use super::drafters::{ModelDrafter, Speculate};
use super::engine_loop::Message;
use super::generation::Generation;
use super::launch::{self, EngineCapacity, LoadedLoop, Ready};
use super::miss::PrefixMiss;
use super::options::{EngineOptions, Exactness};
use super::request::{GenerationRequest, RequestOptions};
use super::resume::Resume;
use super::run::divided::load_divided;
use super::sequence::Outlet;
use super::speculation::draft_source::wants_head;
use super::stats::{EngineStats, Gauges};
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::model::{self, Loaded, Model, ModelSpec};
use crate::processor::{NoImages, Processor};

/// The maximum number of prompt tokens of waiting sequences that are not in the scheduler yet: 256 MB of ids.
const MOST_WAITING_TOKENS: usize = 64 << 20;

/// A running engine. Clones share it. It stops when the last clone and the last [`Generation`] are dropped.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    /// The number of the adapter that this handle's requests use, from 1; 0 for none.
    adapter: usize,
}

/// The state that all clones share.
pub(super) struct Shared {
    /// The id of this engine; see [`GenerationRequest`].
    id: u64,
    folder: Arc<ModelFolder>,
    /// The specs without an adapter, then with each adapter.
    specs: Vec<ModelSpec>,
    /// The exactness of requests that are not exact.
    exactness: Exactness,
    /// The exactness of exact requests without an adapter and with each one, after the check on the device.
    exact_levels: Vec<OnceLock<Exactness>>,
    /// The default for requests that do not set `exact`.
    exact: bool,
    /// The source of drafts for requests that do not set one.
    speculate: Speculate,
    share_prefixes: bool,
    /// The kind of the model that drafts, if any.
    drafter: Option<ModelDrafter>,
    capacity: EngineCapacity,
    /// The reason why the model's vision tower cannot be used, if it cannot.
    no_vision: Option<NoImages>,
    grammars: Grammars,
    max_waiting: usize,
    gauges: Arc<Gauges>,
    /// `None` once the engine is stopping.
    messages: Option<Sender<Message>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Loads the model in `folder` and starts its engine. Calls `progress` with the bytes read so far and the total.
    pub fn start(
        folder: &Path,
        options: &EngineOptions,
        mut progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<Self> {
        let path = folder.to_path_buf();
        if model::is_encoder(folder) {
            launch::expect_options_of_encoder(options, folder)?;
            return Self::start_loop(folder, options, move |options, _, gauges| {
                let loaded = model::load_encoder(&path, options.weights()?, &mut progress)?;
                let missing = || Error::Internal("the model became a decoder while it was loaded".into());
                launch::encoder(loaded.ok_or_else(missing)?, options, gauges)
            });
        }
        Self::start_loop(folder, options, move |options, folder, gauges| {
            let loaded = if let Some(workers) = &options.workers {
                load_divided(&path, workers, options, &mut progress)?
            } else {
                let (adapters, with_head) = (&options.adapters, wants_head(options));
                model::load_adapted(&path, adapters, with_head, options.weights()?, &mut progress)?
            };
            launch::decoder(loaded, folder, options, gauges)
        })
    }

    /// Starts an engine on the model that `load` returns, with the tokenizer, template and defaults of `folder`. For tests that wrap a
    /// model.
    pub fn start_with(
        folder: &Path,
        options: &EngineOptions,
        load: impl FnOnce() -> Result<Box<dyn Model>> + Send + 'static,
    ) -> Result<Self> {
        Self::start_loop(folder, options, move |options, folder, gauges| {
            let loaded = Loaded { models: vec![load()?], mtp: None, vision: None };
            launch::decoder(loaded, folder, options, gauges)
        })
    }

    /// Starts the thread that loads the model and runs its loop.
    fn start_loop(
        folder: &Path,
        options: &EngineOptions,
        load: impl FnOnce(&EngineOptions, Arc<ModelFolder>, Arc<Gauges>) -> Result<(LoadedLoop, Ready)>
        + Send
        + 'static,
    ) -> Result<Self> {
        let _open = mlx_gguf::keep_open(folder);
        let mut folder = ModelFolder::open(folder)?;
        for warning in folder.warnings.texts() {
            tracing::warn!("{warning}");
        }
        if let Some(format) = &options.tool_format {
            folder.set_tool_format(format)?;
        }
        let folder = Arc::new(folder);
        let (messages, receiver) = channel();
        let (ready, loaded) = channel::<Result<Ready>>();
        let gauges = Arc::new(Gauges::default());
        let (for_engine, gauges_of_engine) = (Arc::clone(&folder), Arc::clone(&gauges));
        let options = options.clone();
        let (max_waiting, exact) = (options.max_waiting.max(1), options.exact);
        let (speculate, share_prefixes) = (options.speculate, options.share_prefixes);
        // MLX streams belong to threads, so the thread that runs the model loads it.
        let work = move || match load(&options, for_engine, gauges_of_engine) {
            Err(error) => drop(ready.send(Err(error))),
            Ok((engine, about)) => {
                if ready.send(Ok(about)).is_ok() {
                    engine.run(&receiver);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(work)
            .map_err(|error| Error::EngineStopped(format!("its thread could not start: {error}")))?;
        let Ready { specs, exactness, capacity, drafter, no_vision } =
            loaded.recv().map_err(|_| Error::EngineStopped("loading the model panicked".into()))??;
        if let Err(NoImages::Unusable(why)) = image_processor(&folder, no_vision.as_ref()) {
            tracing::warn!(why, "the model cannot take images");
        }
        let (messages, thread) = (Some(messages), Some(thread));
        let exact_levels = specs.iter().map(|_| OnceLock::new()).collect();
        let shared = Shared {
            id: next_id(),
            folder,
            specs,
            exactness,
            exact_levels,
            exact,
            speculate,
            share_prefixes,
            drafter,
            capacity,
            no_vision,
            grammars: Grammars::default(),
            max_waiting,
            gauges,
            messages,
            thread,
        };
        Ok(Self { shared: Arc::new(shared), adapter: 0 })
    }

    /// Creates a handle without an adapter from the shared state.
    pub(super) fn from_shared(shared: Arc<Shared>) -> Self {
        Self { shared, adapter: 0 }
    }

    /// Returns a reference that does not keep the engine running.
    pub(super) fn downgrade(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    /// Returns a handle whose requests use the adapter at index `place` of [`EngineOptions::adapters`].
    pub fn with_adapter(&self, place: usize) -> Result<Self> {
        let count = self.shared.specs.len() - 1;
        if place >= count {
            return Err(Error::option(
                "adapters",
                format!("has {count} folders; there is none at index {place}"),
            ));
        }
        Ok(Self { shared: Arc::clone(&self.shared), adapter: place + 1 })
    }

    /// Returns the model's folder, with its tokenizer, template and defaults.
    pub fn folder(&self) -> &ModelFolder {
        &self.shared.folder
    }

    /// Returns the image processor of the model.
    ///
    /// # Errors
    /// If the model cannot take pictures; the error says why. [`Error::Vision`] means that it could with other files or a larger memory
    /// budget.
    pub fn image_processor(&self) -> Result<&Processor> {
        image_processor(&self.shared.folder, self.shared.no_vision.as_ref()).map_err(NoImages::error)
    }

    /// Returns the model's shape and size, with the adapter's if this handle has one.
    pub fn spec(&self) -> &ModelSpec {
        &self.shared.specs[self.adapter]
    }

    /// Returns the exactness of requests that do not set `exact`.
    pub fn exactness(&self) -> Exactness {
        self.exactness_of(self.shared.exact).unwrap_or(self.shared.exactness)
    }

    /// Returns the exactness of exact or other requests. The first call for exact requests waits for a check on the device.
    fn exactness_of(&self, exact: bool) -> Result<Exactness> {
        if !exact {
            return Ok(self.shared.exactness);
        }
        let known = &self.shared.exact_levels[self.adapter];
        if let Some(level) = known.get() {
            return Ok(*level);
        }
        let (reply, level) = channel();
        let stopped = |_| Error::EngineStopped("its thread has ended".into());
        self.messages()?.send(Message::CheckExactness(self.adapter, reply)).map_err(stopped)?;
        let lost = |_| Error::Internal("the check of exact decode steps did not finish".into());
        let level = level.recv().map_err(lost)??;
        Ok(*known.get_or_init(|| level))
    }

    fn messages(&self) -> Result<&Sender<Message>> {
        let stopped = || Error::EngineStopped("its thread has ended".into());
        self.shared.messages.as_ref().ok_or_else(stopped)
    }

    /// Returns true if the engine runs requests, and false once its thread has ended.
    pub fn is_ready(&self) -> bool {
        self.shared.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns the reason why no request can run now: a machine that holds some layers is down. The engine keeps trying to reach it.
    pub fn outage(&self) -> Option<String> {
        self.shared.gauges.outage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the counters and gauges of the engine.
    pub fn stats(&self) -> EngineStats {
        self.shared.gauges.snapshot(self.shared.capacity.budget())
    }

    /// Returns the first difference between the last prompt and the cached prefix most similar to it.
    pub fn last_miss(&self) -> Option<PrefixMiss> {
        self.shared.gauges.last_miss.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks a request against this model and its memory. This is the last check: a request that passes it can run.
    pub fn request(&self, prompt: Vec<u32>, options: &RequestOptions) -> Result<GenerationRequest> {
        if let Some(outage) = self.outage() {
            return Err(Error::Distributed(outage));
        }
        let Shared { folder, grammars, .. } = self.shared.as_ref();
        if !options.images.is_empty() {
            self.image_processor()?;
        }
        let mut request = GenerationRequest::new(prompt, options, folder, self.spec(), grammars)?;
        request.limits.adapter = self.adapter;
        request.limits.owner = (!self.shared.share_prefixes).then_some(options.client.0);
        request.limits.exact = options.exact.unwrap_or(self.shared.exact);
        request.limits.speculate = options.speculate.unwrap_or(self.shared.speculate);
        let missing = match request.limits.speculate {
            Speculate::Draft => Some("is draft, but the engine has no draft model; use auto"),
            Speculate::Mtp => Some("is mtp, but the model has no head for drafts; use auto"),
            _ => None,
        };
        let is_there = self.shared.drafter.is_some_and(|it| it.is_selected_by(request.limits.speculate));
        if let Some(message) = missing.filter(|_| !is_there) {
            return Err(Error::request("speculate", message));
        }
        request.exactness = match request.limits.n_keep {
            Some(_) => Exactness::Approximate,
            None => self.exactness_of(request.limits.exact)?,
        };
        request.checked_by = self.shared.id;
        self.shared.capacity.check(request)
    }

    /// Returns a checked request that continues after the tokens of an earlier run, like a sequence after a preemption. Its events are those
    /// that the earlier run would have sent next: tokens, texts, usage and draws do not depend on the interruption. Timings begin with
    /// this run. Without tokens, the request starts again.
    pub fn resumed(&self, request: GenerationRequest, resume: Resume) -> Result<GenerationRequest> {
        request.after(resume, self.spec().vocab_size)
    }

    /// Submits a request that this engine has checked. Returns [`Error::Busy`] if the queue is full.
    pub fn submit(&self, request: GenerationRequest) -> Result<Generation> {
        let mut generations = self.submit_all(vec![request])?;
        generations.pop().ok_or_else(|| Error::Internal("one request became no generation".into()))
    }

    /// Submits the sequences of one client's request, which take one slot in the queue. Either all of them are queued or, on error, none.
    /// They start in this order as slots become free.
    pub fn submit_all(&self, requests: Vec<GenerationRequest>) -> Result<Vec<Generation>> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let Shared { gauges, max_waiting, .. } = self.shared.as_ref();
        let sender = self.messages()?;
        if requests.iter().any(|request| request.checked_by != self.shared.id) {
            return Err(Error::request(
                "request",
                "was checked by another engine; create it with `request` of this engine",
            ));
        }
        let has_room = gauges.waiting_tokens.load(Ordering::Relaxed) < MOST_WAITING_TOKENS;
        let queued = |waiting: usize| (has_room && waiting < *max_waiting).then_some(waiting + 1);
        if let Err(waiting) = gauges.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, queued) {
            return Err(Error::Busy { waiting, retry_after: gauges.retry_after() });
        }
        let tokens = requests.iter().map(GenerationRequest::weight).sum();
        gauges.waiting_tokens.fetch_add(tokens, Ordering::Relaxed);
        let (mut submissions, mut generations) = (Vec::new(), Vec::new());
        for request in requests {
            let (sink, events) = async_channel::unbounded();
            let canceller = Canceller::default();
            let outlet = Outlet { sink, canceller: canceller.clone() };
            let engine = Arc::clone(&self.shared);
            generations.push(Generation::new(events, canceller, request.exactness, engine));
            submissions.push(Submission { request, outlet });
        }
        let stopped = |_| Error::EngineStopped("its thread has ended".into());
        sender.send(Message::Submit(submissions)).map_err(stopped)?;
        Ok(generations)
    }
}

/// Returns the image processor of a folder, if the vision tower can be used.
fn image_processor<'a>(
    folder: &'a ModelFolder,
    no_vision: Option<&'a NoImages>,
) -> Result<&'a Processor, &'a NoImages> {
    let processor = folder.images.as_ref()?;
    no_vision.map_or(Ok(processor), Err)
}

/// Returns a number from 1 that no other engine has.
fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The engine ends when its last sender is dropped. Joining its thread frees the device memory before this returns.
        drop(self.messages.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
