//! An engine in this process. It starts the engine's thread, checks requests and submits them.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use super::admission::Submission;
use super::canceller::Canceller;
use super::constraint::Grammars;
use super::drafters::{ModelDrafter, Speculate};
use super::engine_loop::Message;
use super::launch::{self, EngineCapacity, LoadedLoop, Ready};
use super::miss::PrefixMiss;
use super::options::{EngineOptions, Exactness};
use super::outlet::{Outlet, Sink};
use super::request::{CheckedRequest, RequestOptions};
use super::run::divided::load_divided;
use super::speculation::draft_source::{survey, wants_head};
use super::stats::{EngineStats, Gauges};
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::model::{self, ModelSpec};
use crate::processor::NoTowers;

/// The maximum number of prompt tokens of waiting sequences that are not in the scheduler yet: 256 MB of ids.
const MOST_WAITING_TOKENS: usize = 64 << 20;

/// The engine's thread, and the state that front ends need to check requests. Dropping it ends the thread.
pub(super) struct LocalEngine {
    folder: Arc<ModelFolder>,
    /// The default for requests that do not set `exact`.
    exact: bool,
    /// The source of drafts for requests that do not set one.
    speculate: Speculate,
    share_prefixes: bool,
    /// The kind of the model that drafts, if any.
    drafter: Option<ModelDrafter>,
    capacity: EngineCapacity,
    grammars: Grammars,
    max_waiting: usize,
    gauges: Arc<Gauges>,
    /// `None` once the engine is stopping.
    messages: Option<Sender<Message>>,
    thread: Option<JoinHandle<()>>,
}

/// The model of an engine, as its thread has loaded it.
pub(super) struct Facts {
    /// The specs without an adapter, then with each adapter.
    pub(super) specs: Vec<ModelSpec>,
    /// The exactness of requests that are not exact.
    pub(super) exactness: Exactness,
    pub(super) no_towers: NoTowers,
}

/// A function that loads the models of an engine and creates its loop.
pub(super) type Load =
    Box<dyn FnOnce(&EngineOptions, Arc<ModelFolder>, Arc<Gauges>) -> Result<(LoadedLoop, Ready)> + Send>;

/// Returns the function that loads the model in a folder.
pub(super) fn loader(
    folder: &Path,
    options: &EngineOptions,
    mut progress: impl FnMut(u64, u64) + Send + 'static,
) -> Result<Load> {
    let path = folder.to_path_buf();
    if model::is_encoder(folder) {
        launch::expect_no_decoder_options(options, folder, "an encoder")?;
        return Ok(Box::new(move |options, _, gauges| {
            let loaded = model::load_encoder(&path, options.weights()?, &mut progress)?;
            let missing = || Error::Internal("the model became a decoder while it was loaded".into());
            launch::encoder(loaded.ok_or_else(missing)?, options, gauges)
        }));
    }
    if model::is_whisper(folder) {
        launch::expect_no_decoder_options(options, folder, "a speech recognizer")?;
        return Ok(Box::new(move |options, folder, gauges| {
            let loaded = model::load_whisper(&path, options.weights()?, &mut progress)?;
            let missing = || Error::Internal("the model became another one while it was loaded".into());
            launch::listening(loaded.ok_or_else(missing)?, folder, options, gauges)
        }));
    }
    Ok(Box::new(move |options, folder, gauges| {
        let with_head = wants_head(options);
        let loaded = if let Some(workers) = &options.workers {
            let draft = survey(&path, options)?;
            load_divided(&path, workers, options, (with_head, draft.as_ref()), &mut progress)?
        } else {
            let adapters = &options.adapters;
            model::load_adapted(&path, adapters, with_head, options.weights()?, &mut progress)?
        };
        launch::decoder(loaded, folder, options, gauges)
    }))
}

impl LocalEngine {
    /// Starts the thread, which loads the model.
    pub(super) fn start(
        folder: Arc<ModelFolder>,
        options: &EngineOptions,
        load: Load,
    ) -> Result<(Self, Facts)> {
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
        let Ready { specs, exactness, capacity, drafter, no_towers } =
            loaded.recv().map_err(|_| Error::EngineStopped("loading the model panicked".into()))??;
        let facts = Facts { specs, exactness, no_towers };
        let engine = Self {
            folder,
            exact,
            speculate,
            share_prefixes,
            drafter,
            capacity,
            grammars: Grammars::default(),
            max_waiting,
            gauges,
            messages: Some(messages),
            thread: Some(thread),
        };
        Ok((engine, facts))
    }

    /// Checks on the device how exact the results of exact requests are.
    pub(super) fn check_exactness(&self, adapter: usize) -> Result<Exactness> {
        let (reply, level) = channel();
        let stopped = |_| Error::EngineStopped("its thread has ended".into());
        self.messages()?.send(Message::CheckExactness(adapter, reply)).map_err(stopped)?;
        level.recv().map_err(|_| Error::Internal("the check of exact decode steps did not finish".into()))?
    }

    fn messages(&self) -> Result<&Sender<Message>> {
        let stopped = || Error::EngineStopped("its thread has ended".into());
        self.messages.as_ref().ok_or_else(stopped)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    pub(super) fn stats(&self) -> EngineStats {
        self.gauges.snapshot(self.capacity.budget())
    }

    pub(super) fn last_miss(&self) -> Option<PrefixMiss> {
        self.gauges.last_miss.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks a request for the model of `spec` and its memory. `exactness` returns the exactness of exact and of other requests.
    pub(super) fn check(
        &self,
        prompt: Vec<u32>,
        options: &RequestOptions,
        (spec, adapter): (&ModelSpec, usize),
        exactness: impl FnOnce(bool) -> Result<Exactness>,
    ) -> Result<CheckedRequest> {
        let mut request = CheckedRequest::new(prompt, options, &self.folder, spec, &self.grammars)?;
        request.limits.adapter = adapter;
        request.limits.owner = (!self.share_prefixes).then_some(options.client.0);
        request.limits.exact = options.exact.unwrap_or(self.exact);
        request.limits.speculate = options.speculate.unwrap_or(self.speculate);
        let missing = match request.limits.speculate {
            Speculate::Draft => Some("is draft, but the engine has no draft model; use auto"),
            Speculate::Mtp => Some("is mtp, but the model has no head for drafts; use auto"),
            _ => None,
        };
        let is_there = self.drafter.is_some_and(|it| it.is_selected_by(request.limits.speculate));
        if let Some(message) = missing.filter(|_| !is_there) {
            return Err(Error::request("speculate", message));
        }
        request.exactness = match request.limits.n_keep {
            Some(_) => Exactness::Approximate,
            None => exactness(request.limits.exact)?,
        };
        self.capacity.check(request)
    }

    /// Submits the sequences of one request to their sinks. Returns the flags that cancel them. A full queue is an error unless
    /// `may_exceed`.
    pub(super) fn submit(
        &self,
        requests: Vec<CheckedRequest>,
        sinks: Vec<Sink>,
        may_exceed: bool,
    ) -> Result<Vec<Canceller>> {
        let (gauges, max_waiting) = (&self.gauges, self.max_waiting);
        let sender = self.messages()?;
        let has_room = may_exceed || gauges.waiting_tokens.load(Ordering::Relaxed) < MOST_WAITING_TOKENS;
        let queued =
            |waiting: usize| (has_room && (may_exceed || waiting < max_waiting)).then_some(waiting + 1);
        if let Err(waiting) = gauges.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, queued) {
            return Err(Error::Busy { waiting, retry_after: gauges.retry_after() });
        }
        let tokens = requests.iter().map(CheckedRequest::weight).sum();
        gauges.waiting_tokens.fetch_add(tokens, Ordering::Relaxed);
        let cancellers: Vec<Canceller> = requests.iter().map(|_| Canceller::default()).collect();
        let submission = |((request, sink), canceller): ((CheckedRequest, Sink), &Canceller)| {
            let outlet = Outlet::new(sink, canceller.clone(), &request.log_id);
            Submission { request, outlet }
        };
        let submissions = requests.into_iter().zip(sinks).zip(&cancellers).map(submission).collect();
        let stopped = |_| Error::EngineStopped("its thread has ended".into());
        sender.send(Message::Submit(submissions)).map_err(stopped)?;
        Ok(cancellers)
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        // The engine ends when its last sender is dropped. Joining its thread frees the device memory before this returns.
        drop(self.messages.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
