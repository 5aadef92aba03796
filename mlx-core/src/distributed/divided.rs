//! A model that several machines hold together, each some of its layers: what the parts take, and loading one.

use std::ops::Range;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::cache::{LayerKinds, SequenceState, Variant};
use crate::error::Result;
use crate::model::{
    self, Decoder, DecoderConfig, Footprint, LayerBytes, LayerConfig, ModelSpec, VisionFootprint,
};
use crate::quantization::QuantizationConfig;
use crate::weights::{Progress, WeightPolicy, Weights};

/// How much of each tensor goes into [`Divided::identity`].
const SAMPLE: usize = 64;

/// A model in a folder that is to be divided, from the headers of its files.
pub(super) struct Divided {
    folder: PathBuf,
    policy: WeightPolicy,
    config: DecoderConfig,
    /// The whole model.
    spec: ModelSpec,
    bytes: LayerBytes,
    /// Its vision tower, which rank 0 has.
    vision: Option<VisionFootprint>,
}

impl Divided {
    /// Reads the headers of the files in `folder`.
    pub(super) fn open(folder: &Path, policy: WeightPolicy) -> Result<Self> {
        let (spec, config, bytes) = model::survey_layers(folder, policy)?;
        let vision = model::survey_vision(folder, policy).and_then(Result::ok);
        Ok(Self { folder: folder.to_path_buf(), policy, config, spec, bytes, vision })
    }

    /// The whole model.
    pub(super) fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Bytes on the device of the parts.
    pub(super) fn parts(&self) -> &LayerBytes {
        &self.bytes
    }

    /// Bytes of a float on the device.
    pub(super) fn float_bytes(&self) -> u64 {
        self.bytes.float
    }

    /// Its vision tower.
    pub(super) fn vision(&self) -> Option<VisionFootprint> {
        self.vision
    }

    /// Whether a machine's layers may begin with this one. Rank 0 has all layers that features of pictures are added behind.
    pub(super) fn may_begin_at(&self, layer: usize) -> bool {
        let pictured = self.vision.map_or(0, |vision| vision.row_width() / self.spec.hidden_size - 1);
        (layer == 0 || layer >= pictured) && self.config.may_begin_at(layer)
    }

    /// Whether some of these layers have a state.
    pub(super) fn extend_states(&self, range: &Range<usize>) -> bool {
        self.config.extend_states(range)
    }

    /// Whether a pass that has issued the layers before this one has extended all states.
    pub(super) fn states_end_before(&self, layer: usize) -> bool {
        !self.config.layers[layer..].iter().any(LayerConfig::extends)
    }

    /// What sequences and passes take on a machine that has these layers.
    pub(super) fn footprint(&self, range: &Range<usize>) -> Footprint {
        Footprint::new(&self.config.of_layers(range), self.bytes.float)
    }

    /// What they take at most on one of several machines.
    pub(super) fn widest_footprint(&self, ranges: &[Range<usize>]) -> Footprint {
        let footprints = ranges.iter().map(|range| self.footprint(range));
        footprints.reduce(Footprint::or).unwrap_or(self.spec.footprint)
    }

    /// Bytes on the device of the weights of a machine that has these layers.
    pub(super) fn bytes(&self, range: &Range<usize>) -> u64 {
        let ends = if range.start == 0 { self.bytes.ends } else { 0 };
        ends + self.bytes.layers[range.clone()].iter().sum::<u64>()
    }

    /// The kinds of all layers.
    pub(super) fn kinds(&self) -> LayerKinds {
        let layers = self.config.layers.iter();
        let states = layers.flat_map(|layer| layer.mixer.new_states(layer.sliding_window)).collect();
        let state = SequenceState::new(states, Variant::default());
        LayerKinds { need_checkpoints: state.needs_checkpoints(), are_recurrent: state.is_recurrent() }
    }

    /// A number that two folders share if they hold the same model: it is made of what config.json says, of the names, shapes and types
    /// of all tensors, and of some bytes of each.
    pub(super) fn identity(&self) -> Result<u128> {
        let progress = &mut |_, _| {};
        let weights = Weights::open(&self.folder, QuantizationConfig::default(), self.policy, progress)?;
        let mut checkpoint = weights.into_checkpoint();
        let mut hash = Xxh3::new();
        hash.update(format!("{:?}", self.config).as_bytes());
        let entries: Vec<_> =
            checkpoint.entries().iter().map(|(name, entry)| (name.clone(), entry.clone())).collect();
        for (name, entry) in entries {
            hash.update(format!("{name} {:?} {:?}", entry.dtype, entry.shape).as_bytes());
            // The beginning of a matrix may be padding.
            let middle = entry.length / 2;
            hash.update(&checkpoint.read_part(&entry, middle..entry.length.min(middle + SAMPLE))?);
        }
        Ok(hash.digest128())
    }

    /// Loads some layers, and what is around all of them with the first one.
    pub(super) fn load(&self, range: &Range<usize>, progress: Progress) -> Result<Decoder> {
        model::load_layers(&self.folder, range, self.policy, progress)
    }
}
