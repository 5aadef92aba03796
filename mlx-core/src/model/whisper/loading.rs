//! Loads a Whisper model, or describes it from the headers of its files.

use std::path::Path;

use super::alignment_heads;
use super::config::WhisperConfig;
use super::model::Whisper;
use super::spec::WhisperSpec;
use super::{FAMILY, names};
use crate::backend::Backend;
use crate::config::Fields;
use crate::error::Result;
use crate::model::spec::ModelSpec;
use crate::quantization::QuantizationConfig;
use crate::weights::{Kinds, Progress, Tally, WeightPolicy, Weights};

/// Loads the model in `folder`. `fields` is its config.json.
pub(in crate::model) fn load(
    folder: &Path,
    fields: &Fields,
    config: &WhisperConfig,
    policy: WeightPolicy,
    progress: Progress,
) -> Result<(Whisper, ModelSpec)> {
    let weights = Weights::open(folder, QuantizationConfig::read(fields)?, policy, progress)?;
    let backend = weights.backend();
    let (model, tally) = Whisper::load(folder, config, weights)?;
    Ok((model, spec(config, &tally, backend)))
}

/// Describes the model that [`load`] would load.
pub(in crate::model) fn inspect(
    folder: &Path,
    fields: &Fields,
    config: &WhisperConfig,
    policy: WeightPolicy,
) -> Result<(ModelSpec, Kinds)> {
    let progress = &mut |_, _| {};
    let mut weights = Weights::open(folder, QuantizationConfig::read(fields)?, policy, progress)?;
    names::prepare(&mut weights);
    weights.skip(alignment_heads::NAME);
    let (tally, kinds) = weights.survey();
    Ok((spec(config, &tally, policy.backend), kinds))
}

fn spec(config: &WhisperConfig, tally: &Tally, backend: Backend) -> ModelSpec {
    let whisper = WhisperSpec::new(config, tally.float_bytes(), backend.attention_kernels);
    ModelSpec::of_whisper(FAMILY, config, whisper, tally)
}
