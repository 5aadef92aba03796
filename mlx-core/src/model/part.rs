//! Models that are split across machines: the sizes of the parts, and loading one part.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use super::config::DecoderConfig;
use super::decoder::Decoder;
use super::layer_range::{LayerBytes, ModelPart, keep_part};
use super::{ModelSpec, open};
use crate::adapter::Adapter;
use crate::error::Result;
use crate::weights::{Shard, Shared, WeightPolicy, Weights};

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

/// Loads a part of the model in `folder`, without and with each adapter, and stores its modules in `modules`. With `shard`, it loads that
/// shard of each of its layers.
pub(crate) fn load_part(
    folder: &Path,
    adapters: &[PathBuf],
    (part, shard): (&ModelPart, Option<Shard>),
    (policy, modules): (WeightPolicy, &Shared),
    watch: Watch,
) -> Result<Vec<Decoder>> {
    let end = RefCell::new(None);
    let progress = &mut |read, total| {
        if end.borrow().is_none() {
            end.replace(watch(read, total).err());
        }
    };
    let (family, config, weights) = open(folder, policy, progress)?;
    let weights = shard.iter().cloned().fold(weights.sharing(modules), Weights::sharded);
    let mut decoders = vec![Decoder::load_part(&family, config.clone(), weights, part, &end)?];
    for adapter in adapters {
        let silent = &mut |_, _| {};
        let weights = open(folder, policy, silent)?.2.sharing(modules);
        let weights =
            shard.iter().cloned().fold(weights, Weights::sharded).adapted(Adapter::open(adapter)?)?;
        decoders.push(Decoder::load_part(&family, config.clone(), weights, part, &end)?);
    }
    // An error may also come after the last layer.
    end.into_inner().map_or(Ok(decoders), Err)
}

/// Reads the file headers. Returns the bytes on the device of an adapter's changes of a part of the model. `place` is the rank of the part's
/// machine and the number of ranks in tensor mode.
pub(crate) fn inspect_adapter(
    folder: &Path,
    adapter: &Path,
    policy: WeightPolicy,
    part: &ModelPart,
    place: Option<(usize, usize)>,
) -> Result<u64> {
    let progress = &mut |_, _| {};
    let (_, mut config, weights) = open(folder, policy, progress)?;
    let mut weights = weights.adapted(Adapter::open(adapter)?)?;
    config.prepare(&mut weights)?;
    if let Some((rank, ranks)) = place {
        config.cut(&mut weights, rank, ranks)?;
    }
    keep_part(&mut weights, part, config.layers.len());
    Ok(weights.change_bytes())
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
