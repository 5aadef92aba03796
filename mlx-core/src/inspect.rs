//! Describes a model and its memory needs from its config and the headers of its files. No weights are read.

use std::path::Path;

use chat_format::Image;
use chat_format::text::Tokenizer;
use mlx_files::Warnings;

use crate::adapter::AdapterSummary;
use crate::backend;
use crate::distributed::{self, Parallel, Plan};
use crate::engine::{EngineOptions, MemoryFit, Speculate};
use crate::error::Result;
use crate::folder::{ModelFolder, expect_folder};

use crate::model::{self, ModelSpec, VisionFootprint};
use crate::processor::Processor;
use crate::sampling::SamplingOptions;
use crate::weights::Kinds;

/// A model folder, described without loading it.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// The model as an engine would load it here.
    pub spec: ModelSpec,
    /// Its weights by their format in the files: a float type or a quantization scheme.
    pub kinds: Kinds,
    /// Its adapters.
    pub adapters: Vec<AdapterSummary>,
    /// Its vision tower, or why it cannot be given pictures; `None` if it has none.
    pub vision: Option<Result<VisionSummary, String>>,
    /// Faults of optional files, or the reason why the tokenizer or the chat template cannot be used.
    pub warnings: Warnings,
    /// The sampling values of `generation_config.json`.
    pub sampling: SamplingOptions,
    /// The device it would run on.
    pub device: &'static str,
    /// How much would fit into memory beside the weights.
    pub room: MemoryFit,
}

/// Pixels of each side of a picture whose tokens are counted.
pub const EXAMPLE: u32 = 1024;

/// A vision tower, and what a picture of [`EXAMPLE`] pixels a side takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisionSummary {
    /// Bytes of the tower on the device.
    pub weight_bytes: u64,
    /// Tokens of the picture in a prompt.
    pub picture_tokens: usize,
    /// Bytes that a request is promised for it, beside those of its tokens.
    pub picture_bytes: u64,
}

/// A model on several machines that are like this one.
#[derive(Debug, Clone, PartialEq)]
pub struct Division {
    /// What each machine has, and what a token costs.
    pub plan: Plan,
    /// How much would fit into their memory beside the weights.
    pub room: MemoryFit,
}

/// Divides the model in `folder` among `ranks` machines with engines of these options.
pub fn divide(folder: &Path, options: &EngineOptions, ranks: usize, parallel: Parallel) -> Result<Division> {
    options.expect_divisible()?;
    expect_folder(folder)?;
    let budget = options.memory_budget.map_or_else(backend::default_memory_budget, Ok)?;
    let plan = distributed::plan(folder, options.weights()?, (ranks, parallel), budget)?;
    let room = MemoryFit::of(&options.bounded(plan.spec.clone()), None, plan.vision, options)?;
    Ok(Division { plan, room })
}

/// Returns the memory budget that an engine with these options needs for the model in `folder` and one long chat.
pub fn needed_memory(folder: &Path, options: &EngineOptions) -> Result<u64> {
    let (spec, ..) = model::survey_adapted(folder, &options.adapters, options.weights()?)?;
    let draft = survey_draft(folder, options)?;
    let tower = model::survey_vision(folder, options.weights()?).and_then(Result::ok);
    MemoryFit::needed(&options.bounded(spec), draft.as_ref(), tower, options)
}

/// Returns the draft model or head of the model in `folder`, if it has one.
fn survey_draft(folder: &Path, options: &EngineOptions) -> Result<Option<ModelSpec>> {
    match &options.draft_model {
        Some(name) => model::survey(&mlx_hub::resolve(name)?, options.weights()?).map(|(spec, _)| Some(spec)),
        None if matches!(options.speculate, Speculate::Auto | Speculate::Mtp) => {
            model::survey_mtp(folder, options.weights()?)
        }
        None => Ok(None),
    }
}

/// Inspects `folder` for an engine with these options.
pub fn inspect(folder: &Path, options: &EngineOptions) -> Result<Inspection> {
    expect_folder(folder)?;
    let (spec, kinds, adapters) = model::survey_adapted(folder, &options.adapters, options.weights()?)?;
    let spec = options.bounded(spec);
    let draft = survey_draft(folder, options)?;
    let tower = model::survey_vision(folder, options.weights()?).transpose();
    let room = MemoryFit::of(&spec, draft.as_ref(), tower.as_ref().ok().copied().flatten(), options)?;
    let vision = match tower {
        Ok(None) => None,
        Ok(Some(tower)) => Some(VisionSummary::of(folder, tower)),
        Err(error) => Some(Err(error.to_string())),
    };
    let mut warnings = Warnings::default();
    let opened = ModelFolder::open(folder).map(|opened| Some(opened.warnings));
    if let Some(found) = warnings.or_default(opened, "the model does not run") {
        warnings = found;
    }
    let (sampling, device) = (SamplingOptions::of_checkpoint(folder), backend::device_name()?);
    Ok(Inspection { spec, kinds, adapters, vision, warnings, sampling, device, room })
}

impl VisionSummary {
    fn of(folder: &Path, tower: VisionFootprint) -> Result<Self, String> {
        let tokenizer = Tokenizer::load(folder).map_err(|error| error.to_string())?;
        let processor = Processor::load(folder, &tokenizer).map_err(|why| why.to_string())?;
        let side = EXAMPLE as usize;
        let example = Image::new(EXAMPLE, EXAMPLE, vec![0; 3 * side * side]);
        let example = example.map_err(|error| error.to_string())?;
        let pixels = processor.resized(&example).map_err(|error| error.to_string())?;
        let picture_bytes = tower.request(std::slice::from_ref(&pixels)) + pixels.rgb().len() as u64;
        let tokens = processor.expanded(vec![processor.image_token()], &[pixels]);
        let picture_tokens = tokens.map_err(|error| error.to_string())?.len();
        Ok(Self { weight_bytes: tower.weight_bytes, picture_tokens, picture_bytes })
    }
}
