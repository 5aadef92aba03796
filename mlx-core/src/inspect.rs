//! Describes a model and its memory needs from its config and the headers of its files. No weights are read.

use std::path::Path;

use chat_format::Image;
use chat_format::text::Tokenizer;
use mlx_files::Warnings;

use crate::abilities::Abilities;
use crate::adapter::AdapterSummary;
use crate::backend;
use crate::distributed::{self, Parallel, Plan, RankZero};
use crate::engine::{EngineOptions, MemoryFit, survey_draft};
use crate::error::Result;
use crate::folder::{ModelFolder, expect_folder};

use crate::model::{self, AudioFootprint, ModelSpec, TowerFootprints, VisionFootprint};
use crate::processor::{AudioProcessor, Processor};
use crate::sampling::SamplingOptions;
use crate::sentence_transformers::Pooling;
use crate::weights::Kinds;

/// The description of a model folder, created without loading it.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// The model as an engine would load it here.
    pub spec: ModelSpec,
    /// The weights by their format in the files: a float type or a quantization scheme.
    pub kinds: Kinds,
    /// The tasks that it is made for.
    pub abilities: Abilities,
    /// The vectors of texts, if it is made for them.
    pub embedding: Option<EmbeddingSummary>,
    /// The adapters.
    pub adapters: Vec<AdapterSummary>,
    /// The vision tower, or the reason why images are not supported; `None` if there is no tower.
    pub vision: Option<Result<VisionSummary, String>>,
    /// The audio tower, or the reason why audio is not supported; `None` if there is no tower.
    pub audio: Option<Result<AudioSummary, String>>,
    /// Problems with optional files, or the reason why the tokenizer or the chat template is unusable.
    pub warnings: Warnings,
    /// The sampling values of `generation_config.json`.
    pub sampling: SamplingOptions,
    /// The device that it would run on.
    pub device: &'static str,
    /// The capacity of the memory that the weights leave.
    pub memory_fit: MemoryFit,
}

/// The width and height in pixels of the example picture for counting tokens.
pub const EXAMPLE: u32 = 1024;

/// The vectors of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingSummary {
    /// The numbers of a vector.
    pub dimensions: usize,
    /// The names of the poolings; several are concatenated.
    pub poolings: Vec<&'static str>,
    /// True if vectors have length 1.
    pub normalizes: bool,
    /// The maximum number of tokens of a text.
    pub max_tokens: usize,
}

impl EmbeddingSummary {
    fn of(folder: &ModelFolder, spec: &ModelSpec) -> Option<Self> {
        let embedding = folder.embedding().ok()?;
        let limit = embedding.limit().map_or(usize::MAX, |(tokens, _)| tokens);
        Some(Self {
            dimensions: embedding.dimensions(spec.hidden_size, embedding.pooling).ok()?,
            poolings: embedding.pooling.modes().map(Pooling::name).collect(),
            normalizes: embedding.normalizes,
            max_tokens: limit.min(spec.context_length),
        })
    }
}

/// A vision tower, and the costs of a picture of [`EXAMPLE`] by [`EXAMPLE`] pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisionSummary {
    /// The bytes of the tower on the device.
    pub weight_bytes: u64,
    /// The number of tokens of the picture in a prompt.
    pub picture_tokens: usize,
    /// The bytes reserved for the picture in addition to its tokens.
    pub picture_bytes: u64,
}

/// An audio tower, and the costs of the longest clip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AudioSummary {
    /// The bytes of the tower on the device.
    pub weight_bytes: u64,
    /// The seconds of the longest clip.
    pub max_seconds: u32,
    /// The number of its tokens in a prompt.
    pub clip_tokens: usize,
    /// The bytes reserved for it in addition to its tokens.
    pub clip_bytes: u64,
}

/// A model divided among several machines like this one.
#[derive(Debug, Clone, PartialEq)]
pub struct Partition {
    /// The part of each machine, and the cost of a token.
    pub plan: Plan,
    /// The capacity of the memory that the weights leave.
    pub room: MemoryFit,
}

/// Divides the model in `folder` among `ranks` machines with engines of these options.
pub fn divide(folder: &Path, options: &EngineOptions, ranks: usize, parallel: Parallel) -> Result<Partition> {
    expect_folder(folder)?;
    let budget = options.memory_budget.map_or_else(backend::default_memory_budget, Ok)?;
    let draft = survey_draft(folder, options)?;
    let draft_bytes = draft.as_ref().map_or(0, |draft| draft.weight_bytes);
    let (policy, adapters) = (options.weights()?, options.adapters.clone());
    let here = RankZero { policy, budget, with_mtp: false, draft_bytes, adapters };
    let plan = distributed::plan(folder, (ranks, parallel), &here)?;
    let room = MemoryFit::of(&options.bounded(plan.spec.clone()), draft.as_ref(), plan.towers, options)?;
    Ok(Partition { plan, room })
}

/// Returns the memory budget that an engine with these options needs for the model in `folder` and one long chat.
pub fn needed_memory(folder: &Path, options: &EngineOptions) -> Result<u64> {
    let (spec, ..) = model::inspect_adapted(folder, &options.adapters, options.weights()?)?;
    let draft = survey_draft(folder, options)?;
    let towers = model::inspect_towers(folder, options.weights()?);
    MemoryFit::needed(&options.bounded(spec), draft.as_ref(), towers, options)
}

/// Inspects `folder` for an engine with these options.
pub fn inspect(folder: &Path, options: &EngineOptions) -> Result<Inspection> {
    expect_folder(folder)?;
    let _open = mlx_gguf::keep_open(folder);
    let (spec, kinds, adapters) = model::inspect_adapted(folder, &options.adapters, options.weights()?)?;
    let spec = options.bounded(spec);
    let draft = survey_draft(folder, options)?;
    let tower = model::inspect_vision(folder, options.weights()?).transpose();
    let ears = model::inspect_audio(folder, options.weights()?).transpose();
    let towers = TowerFootprints {
        vision: tower.as_ref().ok().copied().flatten(),
        audio: ears.as_ref().ok().copied().flatten(),
    };
    let room = MemoryFit::of(&spec, draft.as_ref(), towers, options)?;
    let vision = match tower {
        Ok(None) => None,
        Ok(Some(tower)) => Some(VisionSummary::of(folder, tower)),
        Err(error) => Some(Err(error.to_string())),
    };
    let audio = match ears {
        Ok(None) => None,
        Ok(Some(tower)) => Some(AudioSummary::of(folder, tower)),
        Err(error) => Some(Err(error.to_string())),
    };
    let mut warnings = Warnings::default();
    let abilities = Abilities::of(folder)?;
    let mut embedding = None;
    let opened = ModelFolder::open(folder).map(Some);
    if let Some(opened) = warnings.or_default(opened, "the model cannot run") {
        embedding = EmbeddingSummary::of(&opened, &spec).filter(|_| abilities.embeds);
        warnings = opened.warnings;
    }
    let (sampling, device) = (SamplingOptions::of_checkpoint(folder), backend::device_name()?);
    Ok(Inspection {
        spec,
        kinds,
        abilities,
        embedding,
        adapters,
        vision,
        audio,
        warnings,
        sampling,
        device,
        memory_fit: room,
    })
}

impl VisionSummary {
    fn of(folder: &Path, tower: VisionFootprint) -> Result<Self, String> {
        let tokenizer = Tokenizer::load(folder).map_err(|error| error.to_string())?;
        let processor = Processor::load(folder, &tokenizer).map_err(|why| why.to_string())?;
        let side = EXAMPLE as usize;
        let example = Image::new(EXAMPLE, EXAMPLE, vec![0; 3 * side * side]);
        let example = example.map_err(|error| error.to_string())?;
        let resized = processor.resized(&example).map_err(|error| error.to_string())?;
        let pixels: usize = resized.parts.iter().map(|part| part.rgb().len()).sum();
        let picture_bytes = tower.request(resized.parts.iter()) + pixels as u64;
        let tokens = processor.expanded(vec![processor.image_token()], &[resized]);
        let picture_tokens = tokens.map_err(|error| error.to_string())?.len();
        Ok(Self { weight_bytes: tower.weight_bytes, picture_tokens, picture_bytes })
    }
}

impl AudioSummary {
    fn of(folder: &Path, tower: AudioFootprint) -> Result<Self, String> {
        let tokenizer = Tokenizer::load(folder).map_err(|error| error.to_string())?;
        let processor = AudioProcessor::load(folder, &tokenizer).map_err(|why| why.to_string())?;
        let (frames, clip_tokens) = processor.longest();
        Ok(Self {
            weight_bytes: tower.weight_bytes,
            max_seconds: processor.max_seconds(),
            clip_tokens,
            clip_bytes: tower.clip(frames),
        })
    }
}
