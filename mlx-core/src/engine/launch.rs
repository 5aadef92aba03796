//! Loads a model on the engine's thread and creates the loop for it: a decoder's, an encoder's or a speech recognizer's.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::capacity::Capacity;
use super::drafters::ModelDrafter;
use super::encoding::{self, EncoderCapacity, EncoderWorker};
use super::engine_loop::{EngineLoop, Message, Resources};
use super::jobs::JobLoop;
use super::listening::{self, ListeningCapacity, ListeningWorker};
use super::media::EncoderCache;
use super::options::{EngineOptions, Exactness};
use super::request::CheckedRequest;
use super::run::device::Device;
use super::run::memory_budget;
use super::speculation::draft_model::DraftModel;
use super::speculation::draft_source::{EngineModels, choose};
use super::stats::Gauges;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::model::{Loaded, ModelSpec, TextEncoder, Whisper};
use crate::processor::NoTowers;

/// The loop of an engine.
pub(super) enum LoadedLoop {
    Decoder(Box<EngineLoop>),
    Encoder(Box<JobLoop<EncoderWorker<TextEncoder>>>),
    Listening(Box<JobLoop<ListeningWorker>>),
}

impl LoadedLoop {
    /// Runs until every handle is dropped.
    pub(super) fn run(self, messages: &Receiver<Message>) {
        match self {
            Self::Decoder(engine) => engine.run(messages),
            Self::Encoder(engine) => engine.run(messages),
            Self::Listening(engine) => engine.run(messages),
        }
    }
}

/// The memory that requests share.
#[derive(Debug, Clone)]
pub(super) enum EngineCapacity {
    Decoder(Box<Capacity>),
    Encoder(EncoderCapacity),
    Listening(ListeningCapacity),
}

impl EngineCapacity {
    /// Returns all bytes that the engine may use, without freed arrays.
    pub(super) fn budget(&self) -> u64 {
        match self {
            Self::Decoder(capacity) => capacity.budget,
            Self::Encoder(capacity) => capacity.memory.budget,
            Self::Listening(capacity) => capacity.memory.budget,
        }
    }

    /// Refuses a request that could not run even if it were the only one.
    pub(super) fn check(&self, request: CheckedRequest) -> Result<CheckedRequest> {
        match self {
            Self::Decoder(capacity) => capacity.check(request),
            Self::Encoder(capacity) => capacity.check(request),
            // All windows have the same size, and one fits.
            Self::Listening(_) => Ok(request),
        }
    }
}

/// The engine thread's report after loading the model.
pub(super) struct Ready {
    pub(super) specs: Vec<ModelSpec>,
    pub(super) exactness: Exactness,
    pub(super) capacity: EngineCapacity,
    pub(super) drafter: Option<ModelDrafter>,
    pub(super) no_towers: NoTowers,
}

/// Creates the loop of a decoder.
pub(super) fn decoder(
    mut loaded: Loaded,
    folder: Arc<ModelFolder>,
    options: &EngineOptions,
    gauges: Arc<Gauges>,
) -> Result<(LoadedLoop, Ready)> {
    let (vision, audio) = (loaded.vision.take(), loaded.audio.take());
    let EngineModels { models, draft } = choose(loaded, options, &folder)?;
    let (device, capacity) = Device::new(models, draft.as_ref().map(|it| it.0.spec()), options)?;
    let budget = memory_budget::budget(options)?;
    let (towers, no_towers, capacity) = memory_budget::with_towers(capacity, vision, audio, budget);
    let new = |(model, kind)| DraftModel::new(model, kind, options, device.vocabulary());
    let draft = draft.map(new).transpose()?;
    let disk = device.saved_prefixes(options, &folder)?;
    let ready = Ready {
        specs: device.specs(),
        exactness: device.exactness(0, false),
        capacity: EngineCapacity::Decoder(Box::new(capacity.clone())),
        drafter: draft.as_ref().map(DraftModel::kind),
        no_towers,
    };
    let encoder_cache = EncoderCache::new(towers, device.vocabulary());
    let resources = Resources { device, draft_model: draft, encoder_cache, capacity, disk };
    // `EngineLoop::new` sets the gauges before the first call of `stats`.
    let engine = EngineLoop::new(resources, folder, options, gauges)?;
    Ok((LoadedLoop::Decoder(Box::new(engine)), ready))
}

/// Creates the loop of an encoder.
pub(super) fn encoder(
    (encoder, spec): (TextEncoder, ModelSpec),
    options: &EngineOptions,
    gauges: Arc<Gauges>,
) -> Result<(LoadedLoop, Ready)> {
    let spec = options.bounded(spec);
    let capacity = EncoderCapacity::of(&spec, options)?;
    let ready = Ready {
        specs: vec![spec],
        exactness: Exactness::Sampling,
        capacity: EngineCapacity::Encoder(capacity.clone()),
        drafter: None,
        no_towers: NoTowers::for_all("cannot be given to an encoder"),
    };
    let memory = capacity.memory;
    let worker = EncoderWorker::new(encoder, capacity);
    let engine = JobLoop::new(worker, memory, encoding::MAX_RUNNING, options, gauges);
    Ok((LoadedLoop::Encoder(Box::new(engine)), ready))
}

/// Creates the loop of a speech recognizer.
pub(super) fn listening(
    (model, spec): (Whisper, ModelSpec),
    folder: Arc<ModelFolder>,
    options: &EngineOptions,
    gauges: Arc<Gauges>,
) -> Result<(LoadedLoop, Ready)> {
    folder.speech()?;
    let capacity = ListeningCapacity::of(&spec, options)?;
    let context = spec.context_length;
    let ready = Ready {
        specs: vec![spec],
        exactness: Exactness::Bit,
        capacity: EngineCapacity::Listening(capacity.clone()),
        drafter: None,
        no_towers: NoTowers::for_all("cannot be given to a speech recognizer"),
    };
    let (memory, running) = (capacity.memory, options.max_running.clamp(1, listening::MAX_RUNNING));
    let worker = ListeningWorker::new(model, (folder, context), capacity);
    let engine = JobLoop::new(worker, memory, running, options, gauges);
    Ok((LoadedLoop::Listening(Box::new(engine)), ready))
}

/// Refuses options that only decoders follow, before the weights of an encoder or a speech recognizer are read.
pub(super) fn expect_no_decoder_options(options: &EngineOptions, folder: &Path, kind: &str) -> Result<()> {
    let given = [
        ("adapters", !options.adapters.is_empty()),
        ("workers", options.workers.is_some()),
        ("draft_model", options.draft_model.is_some()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((name, _)) => {
            let message = format!("cannot be used with {}, which is {kind}", folder.display());
            Err(Error::option(name, message))
        }
    }
}
