//! Describes a model and its memory needs from its config and the headers of its files. No weights are read.

use std::path::Path;

use crate::adapter::AdapterSummary;
use crate::backend;
use crate::engine::{EngineOptions, MemoryFit, Speculate};
use crate::error::Result;
use crate::folder::expect_folder;
use crate::hub;
use crate::model::{self, ModelSpec};
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
    /// The device it would run on.
    pub device: &'static str,
    /// How much would fit into memory beside the weights.
    pub room: MemoryFit,
}

/// Inspects `folder` for an engine with these options.
pub fn inspect(folder: &Path, options: &EngineOptions) -> Result<Inspection> {
    expect_folder(folder)?;
    let (spec, kinds, adapters) = model::survey_adapted(folder, &options.adapters, options.weights()?)?;
    let spec = options.bounded(spec);
    let draft = match &options.draft_model {
        Some(name) => Some(model::survey(&hub::resolve(name)?, options.weights()?)?.0),
        None if matches!(options.speculate, Speculate::Auto | Speculate::Mtp) => {
            model::survey_mtp(folder, options.weights()?)?
        }
        None => None,
    };
    let room = MemoryFit::of(&spec, draft.as_ref(), options)?;
    Ok(Inspection { spec, kinds, adapters, device: backend::device_name()?, room })
}
