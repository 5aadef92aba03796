//! A model that is divided among machines: the sizes of the shares, and loading one of them.

use std::ops::Range;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::remote_state::LayerKinds;
use crate::adapter::Adapter;
use crate::cache::{SequenceState, Variant};
use crate::error::Result;
use crate::model::part::{self, Watch};
use crate::model::{
    self, Decoder, DecoderConfig, Footprint, LayerBytes, LayerConfig, Model, ModelPart, ModelSpec,
    TowerFootprints,
};
use crate::quantization::QuantizationConfig;
use crate::weights::{Shard as ShardPlace, Shared, WeightPolicy, Weights};

/// Bytes per token in the sums of norms: a mean of queries and one of keys, in f32.
const NORM_BYTES: usize = 8;

/// A model in a folder that is to be divided, read from the headers of its files.
pub(super) struct Divided {
    folder: PathBuf,
    policy: WeightPolicy,
    config: DecoderConfig,
    /// The whole model.
    spec: ModelSpec,
    bytes: LayerBytes,
    /// The footprints of its towers, which run on rank 0.
    towers: TowerFootprints,
    /// Bytes of the model or head that drafts, which runs on rank 0.
    draft_bytes: u64,
    /// The folders of adapters.
    adapters: Vec<PathBuf>,
}

impl Divided {
    /// Reads the headers of the files in `folder`.
    pub(super) fn open(folder: &Path, policy: WeightPolicy) -> Result<Self> {
        let (spec, config, bytes) = part::inspect_layers(folder, policy)?;
        let towers = model::inspect_towers(folder, policy);
        Ok(Self {
            folder: folder.to_path_buf(),
            policy,
            config,
            spec,
            bytes,
            towers,
            draft_bytes: 0,
            adapters: Vec::new(),
        })
    }

    /// Adds these adapters. Fails if one does not fit the model.
    pub(super) fn with_adapters(self, adapters: &[PathBuf]) -> Result<Self> {
        for folder in adapters {
            Adapter::open(folder)?.check_layers(self.spec.num_layers)?;
        }
        Ok(Self { adapters: adapters.to_vec(), ..self })
    }

    /// Counts a model or head of this size, which drafts on rank 0.
    pub(super) fn with_draft(self, draft_bytes: u64) -> Self {
        Self { draft_bytes, ..self }
    }

    /// The whole model.
    pub(super) fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Bytes on the device, per layer and for the ends.
    pub(super) fn parts(&self) -> &LayerBytes {
        &self.bytes
    }

    /// True if some layers have experts.
    pub(super) fn is_mixture(&self) -> bool {
        self.config.experts.is_some()
    }

    /// Bytes of a float on the device.
    pub(super) fn float_bytes(&self) -> u64 {
        self.bytes.float
    }

    /// The footprints of its towers.
    pub(super) fn towers(&self) -> TowerFootprints {
        self.towers
    }

    /// Bytes that rank 0 holds in addition to its layers: the embedding and the head, the towers, and the model or head that drafts.
    pub(super) fn bytes_on_rank_zero(&self) -> u64 {
        self.bytes.ends + self.towers.weight_bytes() + self.draft_bytes
    }

    /// True if a machine's layers may begin with this one. Layers that add features of pictures must be on rank 0.
    pub(super) fn may_begin_at(&self, layer: usize) -> bool {
        let pictured = self.towers.vision.map_or(0, |vision| vision.row_width() / self.spec.hidden_size - 1);
        (layer == 0 || layer >= pictured) && self.config.may_begin_at(layer)
    }

    /// True if some of these layers have a state.
    pub(super) fn extend_states(&self, range: &Range<usize>) -> bool {
        self.config.extend_states(range)
    }

    /// True if a pass that has issued the layers before this one has extended all states.
    pub(super) fn states_end_before(&self, layer: usize) -> bool {
        !self.config.layers[layer..].iter().any(LayerConfig::extends)
    }

    /// Returns the share of a machine with these layers.
    pub(super) fn stage(&self, layers: &Range<usize>) -> Result<Share> {
        let has_ends = layers.start == 0;
        let ends = if has_ends { self.bytes.ends } else { 0 };
        let part = ModelPart { layers: layers.clone(), has_embedding_and_head: has_ends };
        let weight_bytes = ends + self.bytes.layers[layers.clone()].iter().sum::<u64>();
        Ok(Share {
            weight_bytes: weight_bytes + self.adapter_bytes(&part, None)?,
            part,
            footprint: self
                .footprint(&self.config.of_layers(layers), self.bytes.float)
                .with_transfer(self.spec.hidden_size),
        })
    }

    fn footprint(&self, config: &DecoderConfig, size: u64) -> Footprint {
        let footprint = Footprint::new(config, size, self.policy.backend.attention_kernels);
        if self.adapters.is_empty() { footprint } else { footprint.adapted() }
    }

    /// Returns the bytes of all adapters on a machine with this part. `place` is its rank and the number of ranks in tensor mode.
    fn adapter_bytes(&self, part: &ModelPart, place: Option<(usize, usize)>) -> Result<u64> {
        let of = |adapter: &PathBuf| part::inspect_adapter(&self.folder, adapter, self.policy, part, place);
        self.adapters.iter().map(of).sum()
    }

    /// Returns the share of `rank` out of `ranks` machines in tensor mode.
    pub(super) fn shard(&self, rank: usize, ranks: usize) -> Result<Share> {
        let (config, bytes) = part::inspect_shard(&self.folder, self.policy, rank, ranks)?;
        let has_ends = rank == 0;
        let ends = if has_ends { bytes.ends } else { 0 };
        let part = ModelPart { layers: 0..config.layers.len(), has_embedding_and_head: has_ends };
        let adapters = self.adapter_bytes(&part, Some((rank, ranks)))?;
        Ok(Share {
            part,
            weight_bytes: ends + bytes.layers.iter().sum::<u64>() + adapters,
            footprint: self.footprint(&config, bytes.float).with_all_reduce(config.hidden_size, ranks),
        })
    }

    /// The number of sums per pass of `ranks` machines in tensor mode, and the bytes of a token in all of them.
    pub(super) fn sums(&self, ranks: usize) -> (usize, u64) {
        let ((sums, numbers), norms) = (self.config.sums(), self.config.norm_sums(ranks));
        let bytes = numbers as u64 * self.bytes.float;
        (sums + norms, bytes + (norms * NORM_BYTES) as u64)
    }

    /// Returns the properties of all layers.
    pub(super) fn kinds(&self) -> LayerKinds {
        let layers = self.config.layers.iter();
        let states = layers.flat_map(|layer| layer.mixer.new_states(layer.sliding_window)).collect();
        let state = SequenceState::new(states, Variant::default());
        LayerKinds { need_checkpoints: state.needs_checkpoints(), are_recurrent: state.is_recurrent() }
    }

    /// Returns a number that two folders with the same model share: a hash of the config, of the names, shapes and types of all tensors,
    /// and of some bytes of each tensor.
    pub(super) fn identity(&self) -> Result<u128> {
        let progress = &mut |_, _| {};
        let weights = Weights::open(&self.folder, QuantizationConfig::default(), self.policy, progress)?;
        let (checkpoint, _) = weights.into_checkpoint();
        let mut hash = Xxh3::new();
        hash.update(format!("{:?}", self.config).as_bytes());
        checkpoint.sample(&mut hash)?;
        Ok(hash.digest128())
    }

    /// Loads a machine's share, without and with each adapter, and stores its modules in `modules`. `place` is the machine's rank in tensor
    /// mode.
    pub(super) fn load(
        &self,
        part: &ModelPart,
        place: Option<ShardPlace>,
        modules: &Shared,
        watch: Watch,
    ) -> Result<Vec<Decoder>> {
        part::load_part(&self.folder, &self.adapters, (part, place), (self.policy, modules), watch)
    }

    /// Loads the MTP head, whose embedding and output matrix are in `shared`.
    pub(super) fn load_mtp(&self, shared: &Shared) -> Result<Option<Box<dyn Model>>> {
        model::load_mtp(&self.folder, self.policy, shared)
    }
}

/// The share of one machine.
pub(super) struct Share {
    pub(super) part: ModelPart,
    /// Bytes of its weights on the device, without a vision tower.
    pub(super) weight_bytes: u64,
    /// Bytes that sequences and passes take on this machine.
    pub(super) footprint: Footprint,
}

/// Returns the largest footprint of all machines.
pub(super) fn widest(shares: &[Share]) -> Option<Footprint> {
    shares.iter().map(|share| share.footprint).reduce(Footprint::max)
}
