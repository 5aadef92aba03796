//! The properties of a loaded model.

use serde::{Deserialize, Deserializer, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::config::{DecoderConfig, LayerConfig};
use super::encoder::EncoderSpec;
use super::footprint::Footprint;
use super::mixer::MixerKind;
use super::rope::LONG;
use super::whisper::{WhisperConfig, WhisperSpec};
use crate::backend::Backend;
use crate::cache::Variant;
use crate::weights::Tally;

/// The properties of a loaded model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// `model_type` of config.json.
    pub family: String,
    /// The number of token ids; logits have this width.
    pub vocab_size: usize,
    /// The longest sequence the model was trained for, in tokens.
    pub context_length: usize,
    /// The number of layers.
    pub num_layers: usize,
    /// The width of the residual stream, and of embeddings.
    pub hidden_size: usize,
    /// False if its files have no head. Such a model embeds texts and generates none.
    pub has_head: bool,
    /// The float type that the model computes in: `f32`, `f16` or `bf16`.
    #[serde(deserialize_with = "known_dtype")]
    pub dtype: DtypeName,
    /// Parameters read from the files.
    pub parameters: u64,
    /// Bytes of those parameters on the device.
    pub weight_bytes: u64,
    /// Bytes of those parameters in the files.
    pub file_bytes: u64,
    /// The memory of sequences and passes.
    pub footprint: Footprint,
    /// The properties of an encoder; `None` for a decoder.
    pub encoder: Option<EncoderSpec>,
    /// The properties of a Whisper model; `None` for other models.
    pub whisper: Option<WhisperSpec>,
    /// True if a context shift can extend a sequence beyond the context: all layers cache every position, and there is one variant.
    pub supports_context_shift: bool,
    /// A hash of all weights and of their fields in config.json. If the weights were not read, it covers only config.json.
    pub fingerprint: u128,
    /// The number of layers in the first half of a decode step; 0 if a step is not split.
    pub(crate) first_half: usize,
    /// The smallest memory that a worker has free after its weights, in bytes, and the rank of that worker. `None` without workers.
    pub(crate) remote_capacity: Option<(u64, usize)>,
    /// The longest sequence of the default variant, if the model has another one (LongRoPE).
    short_context: Option<usize>,
}

/// The name of a float type. An alias, because serde would borrow a plain reference.
type DtypeName = &'static str;

/// Reads the name of a float type.
fn known_dtype<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DtypeName, D::Error> {
    let name = String::deserialize(deserializer)?;
    Ok(["f32", "f16", "bf16"].into_iter().find(|known| *known == name).unwrap_or("mixed"))
}

impl ModelSpec {
    /// Returns the variant that the state of a sequence of `length` tokens needs. A sequence that grows into another variant is recomputed
    /// from its first token.
    pub fn variant(&self, length: usize) -> Variant {
        if self.short_context.is_some_and(|longest| length > longest) { LONG } else { Variant::default() }
    }

    /// Returns the bytes that an adapter adds to `base`, if `self` is the same model with that adapter.
    pub(crate) fn adapter_bytes(&self, base: &Self) -> u64 {
        self.weight_bytes.saturating_sub(base.weight_bytes)
    }

    pub(super) fn new(family: &str, config: &DecoderConfig, tally: &Tally, backend: Backend) -> Self {
        Self {
            family: family.to_owned(),
            vocab_size: config.vocab_size,
            context_length: config.max_position_embeddings,
            num_layers: config.layers.len(),
            hidden_size: config.hidden_size,
            has_head: !config.head.is_missing,
            dtype: tally.label(),
            parameters: tally.parameters,
            weight_bytes: tally.device_bytes,
            file_bytes: tally.file_bytes,
            footprint: Footprint::new(config, tally.float_bytes(), backend.attention_kernels),
            supports_context_shift: config.layers.iter().all(|layer| {
                layer.mixer == MixerKind::Attention
                    && layer.sliding_window.is_none()
                    && layer.rope.as_ref().is_none_or(|rope| rope.short_context().is_none())
            }),
            // A state has its new length once its last layer is issued, so the first half ends before that layer.
            first_half: config
                .layers
                .iter()
                .rposition(LayerConfig::extends)
                .unwrap_or(0)
                .min(config.layers.len() / 2),
            remote_capacity: None,
            encoder: None,
            whisper: None,
            short_context: config.layers.iter().find_map(|layer| layer.rope.as_ref()?.short_context()),
            fingerprint: xxh3_128(format!("{:032x} {config:?}", tally.hash).as_bytes()),
        }
    }

    pub(super) fn of_whisper(
        family: &str,
        config: &WhisperConfig,
        whisper: WhisperSpec,
        tally: &Tally,
    ) -> Self {
        Self {
            family: family.to_owned(),
            vocab_size: config.vocab_size,
            context_length: config.target_positions,
            num_layers: config.encoder.layers + config.decoder.layers,
            hidden_size: config.hidden_size,
            has_head: true,
            dtype: tally.label(),
            parameters: tally.parameters,
            weight_bytes: tally.device_bytes,
            file_bytes: tally.file_bytes,
            footprint: Footprint::default(),
            supports_context_shift: false,
            first_half: 0,
            remote_capacity: None,
            encoder: None,
            whisper: Some(whisper),
            short_context: None,
            fingerprint: xxh3_128(format!("{:032x} {config:?}", tally.hash).as_bytes()),
        }
    }
}
