//! Models: weights that turn tokens into logits. Invariant: nothing here knows of sampling, text or requests.

mod activation;
mod attention;
mod batch;
mod block;
mod causal_conv;
mod config;
mod decoder;
mod dense_and_experts;
pub mod family;
mod feed_forward;
mod footprint;
mod gated_delta;
#[cfg(test)]
mod halves;
mod head;
mod latent_attention;
mod linear;
mod mixer;
mod moe;
mod norm;
mod pass;
mod per_layer_input;
mod positions;
mod rope;
mod short_conv;
mod softcap;
mod tensors;

use std::path::Path;

use mlx_rs::Array;
use xxhash_rust::xxh3::xxh3_128;

pub use activation::Activation;
pub use attention::{
    AttentionBiases, AttentionConfig, AttentionTemperatureConfig, OutputGate, Projections, QkNormConfig,
    QkNormScope,
};
pub use batch::{Batch, Input, LogitRows, Span};
pub use config::{BlockConfig, DecoderConfig, LayerConfig};
pub use feed_forward::{FeedForwardConfig, FeedForwardInput};
pub use footprint::Footprint;
pub use gated_delta::{GatedDeltaConfig, GatedDeltaProjections};
pub use head::{HeadConfig, LogitScale};
pub use latent_attention::LatentConfig;
pub use mixer::MixerKind;
pub use moe::{
    CorrectionBias, ExpertActivation, ExpertGroups, ExpertTensors, GroupScore, MoeConfig, RoutingConfig,
    ScoringFunc, SharedExpertConfig,
};
pub use norm::{NormConfig, NormKind};
pub use pass::Pass;
pub use per_layer_input::PerLayerInputConfig;
use rope::LONG;
pub use rope::{RopeConfig, RopeDefaults, RopeScaling};
pub use short_conv::ShortConvConfig;
pub use tensors::TensorNames;

use crate::cache::{SequenceState, Variant};
use crate::config::Fields;
use crate::error::Result;
use crate::quantization::QuantizationConfig;
use crate::weights::{Checkpoint, Kinds, Progress, Tally, WeightPolicy, Weights};

/// A loaded model. Its weights never change.
pub trait Model: Send {
    /// What the model is.
    fn spec(&self) -> &ModelSpec;

    /// An empty state for one sequence, computed in this [variant](ModelSpec::variant).
    fn new_state(&self, variant: Variant) -> SequenceState;

    /// Begins a pass over `batch`.
    fn begin(&self, batch: Batch) -> Result<Pass>;

    /// Issues the next `layers` layers of a pass, or as many as are left, and extends the states of its sequences by the pass's
    /// rows. Nothing is computed until it is evaluated. Row `i` depends on its own sequence alone.
    fn advance(&self, pass: &mut Pass, layers: usize, states: &mut [&mut SequenceState]) -> Result<()>;

    /// Removes `dropped` positions of a state behind its first `kept`. Those behind them move up, and their keys are rotated to
    /// their new positions.
    fn shift(&self, state: &mut SequenceState, kept: usize, dropped: usize) -> Result<()>;

    /// A whole pass: the last hidden state of all rows, `[T, hidden]`.
    fn forward(&self, batch: Batch, states: &mut [&mut SequenceState]) -> Result<Array> {
        let mut pass = self.begin(batch)?;
        self.advance(&mut pass, self.spec().num_layers, states)?;
        Ok(pass.hidden)
    }

    /// Some rows of [`Model::forward`] after the last norm, as the head and pooled embeddings need them.
    fn normalized(&self, hidden: &Array) -> Result<Array>;

    /// The logits `[rows, vocabulary]` of some rows of [`Model::forward`], unevaluated.
    fn logits(&self, hidden: &Array) -> Result<Array>;
}

/// What there is to know about a loaded model.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The float type that the model computes in: `f32`, `f16` or `bf16`.
    pub dtype: &'static str,
    /// Parameters read from the files.
    pub parameters: u64,
    /// Bytes of those parameters on the device.
    pub weight_bytes: u64,
    /// Bytes of those parameters in the files.
    pub file_bytes: u64,
    /// What sequences and passes take.
    pub footprint: Footprint,
    /// Whether a sequence can outgrow the context by a context shift: all layers keep every position, and there is one variant.
    pub supports_context_shift: bool,
    /// A hash of all weights and of everything that config.json says about them; of the latter alone where the weights were not
    /// read.
    pub fingerprint: u128,
    /// The longest sequence of the default variant, if the model has another one (LongRoPE).
    short_context: Option<usize>,
}

impl ModelSpec {
    /// The variant that the state of a sequence of `length` tokens has to have. A sequence that grows into another variant is
    /// computed again from its first token.
    pub fn variant(&self, length: usize) -> Variant {
        if self.short_context.is_some_and(|longest| length > longest) { LONG } else { Variant::default() }
    }

    fn new(family: &str, config: &DecoderConfig, tally: &Tally) -> Self {
        Self {
            family: family.to_owned(),
            vocab_size: config.vocab_size,
            context_length: config.max_position_embeddings,
            num_layers: config.layers.len(),
            hidden_size: config.hidden_size,
            dtype: tally.label(),
            parameters: tally.parameters,
            weight_bytes: tally.device_bytes,
            file_bytes: tally.file_bytes,
            footprint: Footprint::new(config, tally.float_bytes()),
            supports_context_shift: config.layers.iter().all(|layer| {
                layer.mixer == MixerKind::Attention
                    && layer.sliding_window.is_none()
                    && layer.rope.as_ref().is_none_or(|rope| rope.short_context().is_none())
            }),
            short_context: config.layers.iter().find_map(|layer| layer.rope.as_ref()?.short_context()),
            fingerprint: xxh3_128(format!("{:032x} {config:?}", tally.hash).as_bytes()),
        }
    }
}

/// Loads the model in `folder`, a Hugging Face folder with `config.json` and safetensors.
pub fn load(folder: &Path, policy: WeightPolicy, progress: Progress) -> Result<Box<dyn Model>> {
    let fields = Fields::read(&folder.join("config.json"))?;
    let (family, config) = family::read(&fields)?;
    let weights = Weights::open(folder, QuantizationConfig::read(&fields)?, policy, progress)?;
    expect_type(&config, &weights)?;
    Ok(Box::new(decoder::Decoder::load(&family, config, weights)?))
}

/// Refuses some types before anything is read.
fn expect_type(config: &DecoderConfig, weights: &Weights) -> Result<()> {
    if config.experts.is_none() || weights.keeps_packed() {
        return Ok(());
    }
    moe::expect_type_of_floats(weights.label(), weights.backend())
}

/// The family of the model in `folder`, its config, corrected by its tensors, and the tensors that [`load`] would take, as they lie
/// in the files.
pub(crate) fn tensors(folder: &Path, policy: WeightPolicy) -> Result<(String, DecoderConfig, Checkpoint)> {
    let fields = Fields::read(&folder.join("config.json"))?;
    let (family, mut config) = family::read(&fields)?;
    let progress = &mut |_, _| {};
    let mut weights = Weights::open(folder, QuantizationConfig::read(&fields)?, policy, progress)?;
    config.prepare(&mut weights)?;
    Ok((family, config, weights.into_checkpoint()))
}

/// What [`load`] would load, from the headers of the files alone: the model, and its weights by kind.
pub fn survey(folder: &Path, policy: WeightPolicy) -> Result<(ModelSpec, Kinds)> {
    let fields = Fields::read(&folder.join("config.json"))?;
    let (family, mut config) = family::read(&fields)?;
    let progress = &mut |_, _| {};
    let mut weights = Weights::open(folder, QuantizationConfig::read(&fields)?, policy, progress)?;
    expect_type(&config, &weights)?;
    config.prepare(&mut weights)?;
    let (tally, kinds) = weights.survey();
    Ok((ModelSpec::new(&family, &config, &tally), kinds))
}
