//! The public handle of an engine, which runs in this process or in another one.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::canceller::Canceller;
use super::generation::Generation;
use super::generation_request::{GenerationRequest, RequestBody};
use super::launch;
use super::local::{Facts, Load, LocalEngine, loader};
use super::miss::PrefixMiss;
use super::options::{EngineOptions, Exactness};
use super::outlet::{EventSink, Sink};
use super::remote::{Outage, RemoteEngine, RemoteFacts, RemoteSequence};
use super::request::{CheckedRequest, RequestOptions};
use super::resume::Resume;
use super::stats::EngineStats;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::model::{Loaded, Model, ModelSpec};
use crate::processor::{AudioProcessor, NoMedia, Processor};

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
    facts: Facts,
    /// The default for requests that do not set `exact`.
    exact: bool,
    /// The exactness of exact requests without an adapter and with each one, after the check on the device.
    exact_levels: Vec<OnceLock<Exactness>>,
    body: Body,
}

/// The place where the engine runs.
enum Body {
    Local(Box<LocalEngine>),
    Remote(Arc<dyn RemoteEngine>),
}

impl Engine {
    /// Loads the model in `folder` and starts its engine. Calls `progress` with the bytes read so far and the total.
    pub fn start(
        folder: &Path,
        options: &EngineOptions,
        progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<Self> {
        Self::start_models(folder, options, loader(folder, options, progress)?)
    }

    /// Starts an engine on the model that `load` returns, with the tokenizer, template and defaults of `folder`. For tests that wrap a
    /// model.
    pub fn start_with(
        folder: &Path,
        options: &EngineOptions,
        load: impl FnOnce() -> Result<Box<dyn Model>> + Send + 'static,
    ) -> Result<Self> {
        let load = move |options: &EngineOptions, folder, gauges| {
            let loaded = Loaded { models: vec![load()?], mtp: None, vision: None, audio: None };
            launch::decoder(loaded, folder, options, gauges)
        };
        Self::start_models(folder, options, Box::new(load))
    }

    fn start_models(folder: &Path, options: &EngineOptions, load: Load) -> Result<Self> {
        let _open = mlx_gguf::keep_open(folder);
        let folder = open_folder(folder, options)?;
        for warning in folder.warnings.texts() {
            tracing::warn!("{warning}");
        }
        let (engine, facts) = LocalEngine::start(Arc::clone(&folder), options, load)?;
        let no_images = usable(&folder.images, facts.no_towers.vision.as_ref()).err();
        let no_audio = usable(&folder.audio, facts.no_towers.audio.as_ref()).err();
        for (kind, why) in [("images", no_images), ("audio", no_audio)] {
            if let Some(NoMedia::Unusable(why)) = why {
                tracing::warn!(why, "the model cannot take {kind}");
            }
        }
        Ok(Self::new(folder, facts, options.exact, Body::Local(Box::new(engine))))
    }

    /// Creates the handle of an engine in another process, which has loaded the model. `exact` is its option.
    pub fn remote(
        folder: Arc<ModelFolder>,
        exact: bool,
        facts: RemoteFacts,
        engine: Arc<dyn RemoteEngine>,
    ) -> Self {
        let RemoteFacts { specs, exactness, no_towers } = facts;
        let facts = Facts { specs, exactness, no_towers };
        Self::new(folder, facts, exact, Body::Remote(engine))
    }

    fn new(folder: Arc<ModelFolder>, facts: Facts, exact: bool, body: Body) -> Self {
        let exact_levels = facts.specs.iter().map(|_| OnceLock::new()).collect();
        let shared = Shared { id: next_id(), folder, facts, exact, exact_levels, body };
        Self { shared: Arc::new(shared), adapter: 0 }
    }

    /// Returns the facts about the model that a handle in another process needs.
    pub fn facts(&self) -> RemoteFacts {
        let Facts { specs, exactness, no_towers } = &self.shared.facts;
        RemoteFacts { specs: specs.clone(), exactness: *exactness, no_towers: no_towers.clone() }
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
        let count = self.shared.facts.specs.len() - 1;
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
        let no_tower = self.shared.facts.no_towers.vision.as_ref();
        usable(&self.shared.folder.images, no_tower).map_err(NoMedia::for_images)
    }

    /// Returns the audio processor of the model.
    ///
    /// # Errors
    /// If the model cannot take audio; the error says why. [`Error::Hearing`] means that it could with other files or a larger memory budget.
    pub fn audio_processor(&self) -> Result<&AudioProcessor> {
        let no_tower = self.shared.facts.no_towers.audio.as_ref();
        usable(&self.shared.folder.audio, no_tower).map_err(NoMedia::for_audio)
    }

    /// Returns the model's shape and size, with the adapter's if this handle has one.
    pub fn spec(&self) -> &ModelSpec {
        &self.shared.facts.specs[self.adapter]
    }

    /// Returns the exactness of requests that do not set `exact`.
    pub fn exactness(&self) -> Exactness {
        self.exactness_of(self.shared.exact).unwrap_or(self.shared.facts.exactness)
    }

    /// Returns the exactness of exact or other requests. The first call for exact requests waits for a check on the device.
    fn exactness_of(&self, exact: bool) -> Result<Exactness> {
        if !exact {
            return Ok(self.shared.facts.exactness);
        }
        let known = &self.shared.exact_levels[self.adapter];
        if let Some(level) = known.get() {
            return Ok(*level);
        }
        let level = match &self.shared.body {
            Body::Local(engine) => engine.check_exactness(self.adapter)?,
            Body::Remote(engine) => engine.exactness(self.adapter)?,
        };
        Ok(*known.get_or_init(|| level))
    }

    /// Returns true if the engine runs requests, and false once it has ended.
    pub fn is_ready(&self) -> bool {
        match &self.shared.body {
            Body::Local(engine) => engine.is_ready(),
            Body::Remote(engine) => engine.is_ready(),
        }
    }

    /// Returns the reason why no request can run now: a machine that holds some layers is down, or the process of the engine has died. The
    /// engine keeps trying to recover.
    pub fn outage(&self) -> Option<Outage> {
        match &self.shared.body {
            Body::Local(_) => None,
            Body::Remote(engine) => engine.outage(),
        }
    }

    /// Returns the counters and gauges of the engine.
    pub fn stats(&self) -> EngineStats {
        match &self.shared.body {
            Body::Local(engine) => engine.stats(),
            Body::Remote(engine) => engine.stats(),
        }
    }

    /// Returns the first difference between the last prompt and the cached prefix most similar to it.
    pub fn last_miss(&self) -> Option<PrefixMiss> {
        match &self.shared.body {
            Body::Local(engine) => engine.last_miss(),
            Body::Remote(engine) => engine.last_miss(),
        }
    }

    /// Checks a request against this model and its memory. This is the last check: a request that passes it can run.
    pub fn request(&self, prompt: Vec<u32>, options: &RequestOptions) -> Result<GenerationRequest> {
        if !options.images.is_empty() {
            self.image_processor()?;
        }
        if !options.audio.is_empty() {
            self.audio_processor()?;
        }
        let body = match &self.shared.body {
            Body::Local(engine) => {
                let model = (self.spec(), self.adapter);
                let request = engine.check(prompt, options, model, |exact| self.exactness_of(exact))?;
                RequestBody::Local(Box::new(request))
            }
            Body::Remote(engine) => RequestBody::Remote(engine.check(self.adapter, prompt, options)?),
        };
        Ok(GenerationRequest { checked_by: self.shared.id, body })
    }

    /// Returns a checked request that continues after the tokens of an earlier run, like a sequence after a preemption. An exact request
    /// sends the events that the earlier run would have sent next, to the bit. Other requests keep their draws, and their logits may
    /// differ by rounding. Timings begin with this run. Without tokens, the request starts again.
    ///
    /// # Errors
    /// If the request cannot have drawn these tokens, or its engine is in another process.
    pub fn resumed(&self, request: GenerationRequest, resume: Resume) -> Result<GenerationRequest> {
        let GenerationRequest { checked_by, body: RequestBody::Local(request) } = request else {
            return Err(Error::request("resume", "is not available for an engine in another process"));
        };
        let body = RequestBody::Local(Box::new(request.after(resume, self.spec().vocab_size)?));
        Ok(GenerationRequest { checked_by, body })
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
        let exactness: Vec<Exactness> = requests.iter().map(GenerationRequest::exactness).collect();
        let channels: Vec<_> = requests.iter().map(|_| async_channel::unbounded()).collect();
        let sinks = channels.iter().map(|(sink, _)| sink.clone());
        let cancellers = match &self.shared.body {
            Body::Local(engine) => {
                engine.submit(self.local(requests)?, sinks.map(Sink::from).collect(), false)?
            }
            Body::Remote(engine) => {
                let cancellers: Vec<Canceller> = requests.iter().map(|_| Canceller::default()).collect();
                let sequences = requests.into_iter().zip(sinks).zip(&cancellers);
                let sequences =
                    sequences.map(|((request, events), canceller)| match self.own(request)?.body {
                        RequestBody::Remote(request) => {
                            Ok(RemoteSequence { request, events, canceller: canceller.clone() })
                        }
                        RequestBody::Local(_) => Err(foreign()),
                    });
                engine.submit(sequences.collect::<Result<_>>()?)?;
                cancellers
            }
        };
        let each = channels.into_iter().zip(cancellers).zip(exactness);
        let generation = |(((_, events), canceller), exactness)| {
            Generation::new(events, canceller, exactness, self.shared.clone())
        };
        Ok(each.map(generation).collect())
    }

    /// Submits requests like [`Engine::submit_all`], with other receivers of their events, one for each. Returns the flags that cancel them.
    /// With `may_exceed`, the queue may become longer than its limit, for requests that it held before.
    pub fn submit_to(
        &self,
        requests: Vec<GenerationRequest>,
        sinks: Vec<Arc<dyn EventSink>>,
        may_exceed: bool,
    ) -> Result<Vec<Canceller>> {
        match &self.shared.body {
            Body::Local(engine) => {
                let sinks = sinks.into_iter().map(Sink::Custom).collect();
                engine.submit(self.local(requests)?, sinks, may_exceed)
            }
            Body::Remote(_) => Err(foreign()),
        }
    }

    /// Returns the requests, which this engine must have checked.
    fn local(&self, requests: Vec<GenerationRequest>) -> Result<Vec<CheckedRequest>> {
        let local = |request| match self.own(request)?.body {
            RequestBody::Local(request) => Ok(*request),
            RequestBody::Remote(_) => Err(foreign()),
        };
        requests.into_iter().map(local).collect()
    }

    fn own(&self, request: GenerationRequest) -> Result<GenerationRequest> {
        if request.checked_by == self.shared.id { Ok(request) } else { Err(foreign()) }
    }
}

fn foreign() -> Error {
    Error::request("request", "was checked by another engine; create it with `request` of this engine")
}

/// Opens the folder of a model for an engine with these options.
pub fn open_folder(folder: &Path, options: &EngineOptions) -> Result<Arc<ModelFolder>> {
    let mut folder = ModelFolder::open(folder)?;
    if let Some(format) = &options.tool_format {
        folder.set_tool_format(format)?;
    }
    Ok(Arc::new(folder))
}

/// Returns a processor if its tower can be used.
fn usable<'a, P>(
    processor: &'a Result<P, NoMedia>,
    no_tower: Option<&'a NoMedia>,
) -> Result<&'a P, &'a NoMedia> {
    let processor = processor.as_ref()?;
    no_tower.map_or(Ok(processor), Err)
}

/// Returns a number from 1 that no other engine has.
fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
