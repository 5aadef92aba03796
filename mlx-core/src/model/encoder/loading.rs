//! Loads an encoder, or describes it from the headers of its files.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use super::config::EncoderConfig;
use super::spec::EncoderSpec;
use super::text_encoder::TextEncoder;
use crate::backend::Backend;
use crate::config::Fields;
use crate::error::Result;
use crate::model::spec::ModelSpec;
use crate::quantization::QuantizationConfig;
use crate::weights::{Kinds, Progress, Tally, WeightPolicy, Weights};

/// Loads an encoder from `folder`. `fields` is its config.json.
pub(in crate::model) fn load(
    folder: &Path,
    fields: &Fields,
    (family, config): (&str, EncoderConfig),
    policy: WeightPolicy,
    progress: Progress,
) -> Result<(TextEncoder, ModelSpec)> {
    let weights = Weights::open(folder, QuantizationConfig::read(fields)?, policy, progress)?;
    let (size, backend) = (weights.survey().0.float_bytes(), weights.backend());
    let footprint = EncoderSpec::new(&config, size, backend.attention_kernels);
    let (encoder, tally) = TextEncoder::load(config.clone(), weights, footprint.row_scores)?;
    Ok((encoder, spec(family, &config, &tally, backend)))
}

/// Describes the encoder that [`load`] would load.
pub(in crate::model) fn inspect(
    folder: &Path,
    fields: &Fields,
    (family, mut config): (&str, EncoderConfig),
    policy: WeightPolicy,
) -> Result<(ModelSpec, Kinds)> {
    let progress = &mut |_, _| {};
    let mut weights = Weights::open(folder, QuantizationConfig::read(fields)?, policy, progress)?;
    config.prepare(&mut weights)?;
    let (tally, kinds) = weights.survey();
    Ok((spec(family, &config, &tally, policy.backend), kinds))
}

fn spec(family: &str, config: &EncoderConfig, tally: &Tally, backend: Backend) -> ModelSpec {
    let mut spec = ModelSpec::new(family, &config.stack, tally, backend);
    spec.encoder = Some(EncoderSpec::new(config, tally.float_bytes(), backend.attention_kernels));
    (spec.has_head, spec.supports_context_shift) = (false, false);
    spec.fingerprint = xxh3_128(format!("{:032x} {config:?}", tally.hash).as_bytes());
    spec
}
