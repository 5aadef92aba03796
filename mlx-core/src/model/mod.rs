//! Models: weights that turn tokens into logits. Invariant: no code here depends on sampling, text or requests.

mod activation;
mod altup;
mod architecture;
mod attention;
mod attention_beside_mamba2;
mod attention_work;
mod audio;
mod batch;
mod block;
mod causal_conv;
mod clipped_linear;
mod config;
mod decoder;
mod dense_and_experts;
mod embedding;
mod encoder;
mod ends;
pub mod family;
mod feed_forward;
mod footprint;
mod fused_delta;
mod gated_delta;
#[cfg(test)]
mod halves;
mod head;
mod hidden;
mod in_files;
mod kimi_delta;
mod latent_attention;
mod layer_range;
mod linear;
mod low_rank;
mod mamba2;
mod mixer;
mod moe;
mod mtp;
mod norm;
pub(crate) mod part;
mod pass;
mod per_layer_input;
mod positions;
mod recurrence;
mod rope;
mod segments;
mod short_conv;
mod softcap;
mod spec;
mod tensor_parallel;
mod tensors;
mod vision;
mod whisper;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mlx_rs::Array;

pub use activation::Activation;
pub use altup::AltUpConfig;
pub use architecture::Architecture;
pub(crate) use architecture::VLLM_KEY;
pub use attention::{
    AttentionBiases, AttentionConfig, AttentionTemperatureConfig, HeadGateConfig, OutputGate, Projections,
    QkNormConfig, QkNormScope,
};
pub use attention_beside_mamba2::BesideMamba2Config;
pub use attention_work::AttentionWork;
pub use audio::{AudioFootprint, AudioTower, TowerFootprints};
pub use batch::{Batch, Input, LogitRows, Span};
pub use config::{BlockConfig, DecoderConfig, LayerConfig};
pub(crate) use decoder::Decoder;
pub use encoder::{
    ClassifierConfig, ClassifierDense, EncodedTexts, EncoderConfig, EncoderNames, EncoderSpec, PoolRow,
    PositionTable, RelativeBias, TextEncoder, TextRows, TextTokens,
};
pub use feed_forward::{FeedForwardConfig, FeedForwardInput};
pub use footprint::Footprint;
pub use gated_delta::{GatedDeltaConfig, GatedDeltaProjections};
pub use head::{HeadConfig, LogitScale};
pub(crate) use hidden::Hidden;
pub(crate) use in_files::InFiles;
pub use kimi_delta::KimiDeltaConfig;
pub use latent_attention::LatentConfig;
pub(crate) use layer_range::{LayerBytes, ModelPart};
pub use mamba2::{GatedNorm, Mamba2Config};
pub use mixer::MixerKind;
pub use moe::{
    CorrectionBias, ExpertActivation, ExpertGroups, ExpertTensors, GroupScore, LatentExpertsConfig,
    MoeConfig, RoutingConfig, ScoringFunc, SharedExpertConfig,
};
pub(crate) use mtp::MTP_HISTORY;
pub use norm::{NormConfig, NormKind};
pub(crate) use pass::Issued;
pub use pass::Pass;
pub use per_layer_input::PerLayerInputConfig;
pub use rope::{MropeSection, RopeConfig, RopeDefaults, RopeScaling};
pub use short_conv::ShortConvConfig;
pub use spec::ModelSpec;
pub use tensors::TensorNames;
pub use vision::{Vision, VisionFootprint};
pub use whisper::{
    DecoderState, EncodedAudio, EncoderPass, Whisper, WhisperConfig, WhisperSpec, WhisperStack,
};

use crate::adapter::{self, Adapter, AdapterSummary};
use crate::cache::{SequenceState, Variant};
use crate::config::Fields;
use crate::error::{Error, Result};
use crate::quantization::QuantizationConfig;
use crate::weights::{Kinds, Progress, Shared, WeightPolicy, Weights};

/// A loaded model. Its weights never change.
pub trait Model: Send {
    /// Returns the properties of the model.
    fn spec(&self) -> &ModelSpec;

    /// Returns an empty state for one sequence, to be computed in this [variant](ModelSpec::variant).
    fn new_state(&self, variant: Variant) -> SequenceState;

    /// Begins a pass over `batch`.
    fn begin(&self, batch: Batch) -> Result<Pass>;

    /// Issues the next `layers` layers of a pass, or the remaining ones if there are fewer. Extends the states of its sequences by the rows
    /// of the pass. Nothing is computed until it is evaluated. Row `i` depends only on its own sequence.
    fn advance(&self, pass: &mut Pass, layers: usize, states: &mut [&mut SequenceState]) -> Result<()>;

    /// Removes the `dropped` positions that follow the first `kept` positions of a state. Later positions move up, and their keys are rotated
    /// to the new positions.
    fn shift(&self, state: &mut SequenceState, kept: usize, dropped: usize) -> Result<()>;

    /// Runs a whole pass and returns the last hidden state of all rows, `[T, hidden]`.
    fn forward(&self, batch: Batch, states: &mut [&mut SequenceState]) -> Result<Array> {
        let mut pass = self.begin(batch)?;
        self.advance(&mut pass, self.spec().num_layers, states)?;
        Ok(pass.hidden)
    }

    /// Returns the other machines of a divided model.
    fn other_machines(&self) -> Option<&dyn OtherMachines> {
        None
    }

    /// Applies the last norm to some rows of [`Model::forward`]. The head and pooled embeddings read the result.
    fn normalized(&self, hidden: &Array) -> Result<Array>;

    /// Returns the logits `[rows, vocabulary]` of some rows of [`Model::forward`], unevaluated.
    fn logits(&self, hidden: &Array) -> Result<Array>;
}

/// The machines that compute a divided model together with this one.
pub trait OtherMachines {
    /// Returns the peak bytes of arrays on each of them.
    fn peaks(&self) -> Vec<u64>;

    /// Waits until they have computed all passes. The results of a pass are valid only after that.
    fn wait(&self) -> Result<()>;

    /// Reports an error of this machine within a pass: the others cannot continue after it, because some of them may have computed the
    /// pass.
    fn fail(&self, error: &str) -> Error;
}

/// Loads the model in `folder`, a Hugging Face folder with `config.json` and safetensors.
pub fn load(folder: &Path, policy: WeightPolicy, progress: Progress) -> Result<Box<dyn Model>> {
    let (family, config, weights) = open(folder, policy, progress)?;
    Ok(Box::new(decoder::Decoder::load(&family, config, weights)?))
}

/// Returns the family and the config of the model in `folder`, and its weights after reading their headers.
fn open<'a>(
    folder: &Path,
    policy: WeightPolicy,
    progress: Progress<'a>,
) -> Result<(String, DecoderConfig, Weights<'a>)> {
    let fields = Fields::read(&folder.join("config.json"))?;
    let (family, config) = family::read(&fields)?;
    let weights = Weights::open(folder, QuantizationConfig::read(&fields)?, policy, progress)?;
    expect_type(&config, &weights)?;
    Ok((family, config, weights))
}

/// Returns true if config.json in `folder` describes an encoder.
pub fn is_encoder(folder: &Path) -> bool {
    let architecture =
        Fields::read(&folder.join("config.json")).and_then(|fields| Architecture::read(&fields));
    matches!(architecture, Ok((_, Architecture::Encoder(_))))
}

/// Loads the encoder in `folder`. `None` if the model is a decoder.
pub fn load_encoder(
    folder: &Path,
    policy: WeightPolicy,
    progress: Progress,
) -> Result<Option<(TextEncoder, ModelSpec)>> {
    let fields = Fields::read(&folder.join("config.json"))?;
    let (family, Architecture::Encoder(config)) = Architecture::read(&fields)? else { return Ok(None) };
    encoder::load(folder, &fields, (&family, config), policy, progress).map(Some)
}

/// Returns true if config.json in `folder` describes a Whisper model.
pub fn is_whisper(folder: &Path) -> bool {
    let fields = Fields::read(&folder.join("config.json"));
    matches!(fields.and_then(|fields| Architecture::read(&fields)), Ok((_, Architecture::Whisper(_))))
}

/// Loads the Whisper model in `folder`. `None` if it is another model.
pub fn load_whisper(
    folder: &Path,
    policy: WeightPolicy,
    progress: Progress,
) -> Result<Option<(Whisper, ModelSpec)>> {
    let fields = Fields::read(&folder.join("config.json"))?;
    let (_, Architecture::Whisper(config)) = Architecture::read(&fields)? else { return Ok(None) };
    whisper::load(folder, &fields, &config, policy, progress).map(Some)
}

/// The models of an engine.
pub struct Loaded {
    /// The base model first, then the model with each adapter, in order. They share all weights that no adapter replaces.
    pub models: Vec<Box<dyn Model>>,
    /// The MTP head, or the reason that it cannot be loaded. `None` if the model has none, or if it was not requested. It shares the
    /// embedding and the output matrix with the model.
    pub mtp: Option<Result<Box<dyn Model>>>,
    /// The vision tower, or the reason that it cannot be loaded. `None` if the model has none.
    pub vision: Option<Result<Vision>>,
    /// The audio tower, or the reason that it cannot be loaded. `None` if the model has none.
    pub audio: Option<Result<AudioTower>>,
}

impl Loaded {
    /// Returns these models with the towers in `folder`.
    pub(crate) fn with_towers(
        models: Vec<Box<dyn Model>>,
        mtp: Option<Result<Box<dyn Model>>>,
        folder: &Path,
        policy: WeightPolicy,
    ) -> Self {
        let (vision, audio) =
            (vision::load_if_present(folder, policy), audio::load_if_present(folder, policy));
        Self { models, mtp, vision, audio }
    }
}

/// Loads the model in `folder`, the same model with each of `adapters`, and its MTP head if `with_mtp`.
pub fn load_adapted(
    folder: &Path,
    adapters: &[PathBuf],
    with_mtp: bool,
    policy: WeightPolicy,
    progress: Progress,
) -> Result<Loaded> {
    if adapters.is_empty() && !with_mtp {
        let models = vec![load(folder, policy, progress)?];
        return Ok(Loaded::with_towers(models, None, folder, policy));
    }
    let fields = Fields::read(&folder.join("config.json"))?;
    let (family, config) = family::read(&fields)?;
    // Errors in an adapter are reported before the weights are read.
    let opened = adapters.iter().map(|adapter| {
        let adapter = Adapter::open(adapter)?;
        adapter.check_layers(config.layers.len()).map(|()| adapter)
    });
    let opened = opened.collect::<Result<Vec<_>>>()?;
    let (shared, quantization) = (Shared::default(), QuantizationConfig::read(&fields)?);
    let weights = Weights::open(folder, quantization.clone(), policy, progress)?.sharing(&shared);
    expect_type(&config, &weights)?;
    let mut models: Vec<Box<dyn Model>> =
        vec![Box::new(decoder::Decoder::load(&family, config.clone(), weights)?)];
    for adapter in opened {
        let silent = &mut |_, _| {};
        let weights = Weights::open(folder, quantization.clone(), policy, silent)?;
        let weights = weights.sharing(&shared).adapted(adapter)?;
        models.push(Box::new(decoder::Decoder::load(&family, config.clone(), weights)?));
    }
    let mtp = if with_mtp { load_mtp(folder, policy, &shared).transpose() } else { None };
    Ok(Loaded::with_towers(models, mtp, folder, policy))
}

/// Loads the MTP head of the model in `folder`, whose embedding and output matrix are in `shared`. `None` if the model has no head.
pub(crate) fn load_mtp(
    folder: &Path,
    policy: WeightPolicy,
    shared: &Shared,
) -> Result<Option<Box<dyn Model>>> {
    let silent = &mut |_, _| {};
    let (family, config, weights) = open(folder, policy, silent)?;
    let head = Decoder::load_mtp(&family, config, weights.reusing(shared))?;
    Ok(head.map(|head| Box::new(head) as Box<dyn Model>))
}

/// Rejects float types that experts do not support, before any weight is read.
fn expect_type(config: &DecoderConfig, weights: &Weights) -> Result<()> {
    if config.experts.is_none() || weights.has_packed() {
        return Ok(());
    }
    moe::expect_type_of_floats(weights.label(), weights.backend())
}

/// Reads only the file headers. Returns what [`load_adapted`] would load: the model with the memory of its adapters, its weights by kind,
/// and the adapters.
pub fn inspect_adapted(
    folder: &Path,
    adapters: &[PathBuf],
    policy: WeightPolicy,
) -> Result<(ModelSpec, Kinds, Vec<AdapterSummary>)> {
    let (mut spec, kinds) = inspect(folder, policy)?;
    let summaries = adapters.iter().map(|adapter| adapter::summary(adapter, spec.num_layers));
    let summaries = summaries.collect::<Result<Vec<AdapterSummary>>>()?;
    if !summaries.is_empty() {
        spec.weight_bytes += summaries.iter().map(|adapter| adapter.device_bytes(spec.dtype)).sum::<u64>();
        spec.footprint = spec.footprint.adapted();
    }
    Ok((spec, kinds, summaries))
}

/// Reads only the file headers. Returns what [`load`] would load: the model, and its weights by kind.
pub fn inspect(folder: &Path, policy: WeightPolicy) -> Result<(ModelSpec, Kinds)> {
    let fields = Fields::read(&folder.join("config.json"))?;
    match Architecture::read(&fields)? {
        (_, Architecture::Decoder(_)) => {}
        (family, Architecture::Encoder(config)) => {
            return encoder::inspect(folder, &fields, (&family, config), policy);
        }
        (_, Architecture::Whisper(config)) => return whisper::inspect(folder, &fields, &config, policy),
    }
    let progress = &mut |_, _| {};
    let (family, mut config, mut weights) = open(folder, policy, progress)?;
    config.prepare(&mut weights)?;
    let (tally, kinds) = weights.survey();
    Ok((ModelSpec::new(&family, &config, &tally, policy.backend), kinds))
}

/// Reads only config.json, or the header of a GGUF file. Fails for a model that can never be loaded, such as one with an unsupported
/// architecture.
pub fn check_config(folder: &Path) -> Result<()> {
    if mlx_gguf::is_gguf(folder) {
        mlx_gguf::GgufFolder::open(folder)?.tensors()?;
    }
    let fields = Fields::read(&folder.join("config.json"))?;
    Architecture::read(&fields)?;
    QuantizationConfig::read(&fields).map(drop)
}

/// Reads only the file headers. Returns the memory of the tower of [`Loaded::vision`], or the reason that it cannot be loaded. `None` if
/// the model has none.
pub fn inspect_vision(folder: &Path, policy: WeightPolicy) -> Option<Result<VisionFootprint>> {
    vision::survey(folder, policy)
}

/// Like [`inspect_vision`], for the tower of [`Loaded::audio`].
pub fn inspect_audio(folder: &Path, policy: WeightPolicy) -> Option<Result<AudioFootprint>> {
    audio::survey(folder, policy)
}

/// Reads only the file headers. Returns the memory of the towers that can be loaded.
pub fn inspect_towers(folder: &Path, policy: WeightPolicy) -> TowerFootprints {
    TowerFootprints {
        vision: inspect_vision(folder, policy).and_then(Result::ok),
        audio: inspect_audio(folder, policy).and_then(Result::ok),
    }
}

/// Reads only the file headers. Returns the properties of the head of [`Loaded::mtp`]; `None` if the model has none.
pub fn inspect_mtp(folder: &Path, policy: WeightPolicy) -> Result<Option<ModelSpec>> {
    let fields = Fields::read(&folder.join("config.json"))?;
    let (family, Architecture::Decoder(mut config)) = Architecture::read(&fields)? else { return Ok(None) };
    let progress = &mut |_, _| {};
    let mut weights = Weights::open(folder, QuantizationConfig::read(&fields)?, policy, progress)?;
    config.prepare_with_heads(&mut weights)?;
    let Some(names) = mtp::MtpNames::find(&mut weights, &config) else { return Ok(None) };
    let Some(config) = mtp::config_of_head(&config) else { return Ok(None) };
    let unused = weights.names().filter(|name| !names.owns(&weights, name)).map(str::to_owned);
    let unused: BTreeSet<String> = unused.collect();
    weights.skip_all(|name| unused.contains(name));
    let mut spec = ModelSpec::new(&family, &config, &weights.survey().0, policy.backend);
    spec.footprint = spec.footprint.with_mtp_history(config.hidden_size, mtp::MTP_HISTORY);
    Ok(Some(spec))
}
