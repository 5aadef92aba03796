//! What a model is and what it would take, from its config and the headers of its files; no weights are read.

use std::path::Path;

use crate::array;
use crate::engine::{EngineOptions, MemoryFit};
use crate::error::Result;
use crate::folder::expect_folder;
use crate::model::{self, ModelSpec};
use crate::weights::Kinds;

/// What there is to know about a model folder before it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The model as an engine would load it here.
    pub spec: ModelSpec,
    /// Its weights, by their form in the files: a float type, or how they are packed.
    pub kinds: Kinds,
    /// The device it would run on.
    pub device: &'static str,
    /// What would fit beside it.
    pub room: MemoryFit,
}

/// Looks into `folder` for an engine with these options.
pub fn inspect(folder: &Path, options: &EngineOptions) -> Result<Inspection> {
    expect_folder(folder)?;
    let (spec, kinds) = model::survey(folder, options.weights()?)?;
    let room = MemoryFit::of(&spec, options)?;
    Ok(Inspection { spec, kinds, device: array::device_name()?, room })
}
