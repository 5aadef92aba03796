//! Models that are split across machines: the sizes of the parts, and loading one part.

use std::cell::RefCell;
use std::path::Path;

use super::config::DecoderConfig;
use super::decoder::Decoder;
use super::layer_range::{LayerBytes, ModelPart};
use super::{ModelSpec, open};
use crate::error::Result;
use crate::weights::{Shard, WeightPolicy, Weights};

/// Reads the file headers of a model that will be split across machines. Returns the properties of the whole model, its config, and the
/// bytes of its layers and of its ends.
pub(crate) fn inspect_layers(
    folder: &Path,
    policy: WeightPolicy,
) -> Result<(ModelSpec, DecoderConfig, LayerBytes)> {
    let progress = &mut |_, _| {};
    let (family, mut config, mut weights) = open(folder, policy, progress)?;
    config.prepare(&mut weights)?;
    config.expect_divisible(&family)?;
    let bytes = LayerBytes::of(&weights, config.layers.len());
    Ok((ModelSpec::new(&family, &config, &weights.survey().0, policy.backend), config, bytes))
}

/// Called with the bytes read so far and the total. An error ends loading before the next layer.
pub(crate) type Watch<'a> = &'a mut dyn FnMut(u64, u64) -> Result<()>;

/// Loads a part of the model in `folder`. With `shard`, it loads that shard of each of its layers.
pub(crate) fn load_part(
    folder: &Path,
    part: &ModelPart,
    shard: Option<Shard>,
    policy: WeightPolicy,
    watch: Watch,
) -> Result<Decoder> {
    let end = RefCell::new(None);
    let progress = &mut |read, total| {
        if end.borrow().is_none() {
            end.replace(watch(read, total).err());
        }
    };
    let (family, config, weights) = open(folder, policy, progress)?;
    let weights = shard.into_iter().fold(weights, Weights::sharded);
    let decoder = Decoder::load_part(&family, config, weights, part, &end)?;
    // An error may also come after the last layer.
    end.into_inner().map_or(Ok(decoder), Err)
}

/// Reads the file headers. Returns the config and the bytes of the shard that `rank` of `ranks` machines has of every layer.
pub(crate) fn inspect_shard(
    folder: &Path,
    policy: WeightPolicy,
    rank: usize,
    ranks: usize,
) -> Result<(DecoderConfig, LayerBytes)> {
    let progress = &mut |_, _| {};
    let (family, mut config, mut weights) = open(folder, policy, progress)?;
    config.prepare(&mut weights)?;
    config.expect_divisible(&family)?;
    let shared = config.for_rank(&family, ranks)?;
    config.cut(&mut weights, rank, ranks)?;
    let bytes = LayerBytes::of(&weights, config.layers.len());
    Ok((shared, bytes))
}
