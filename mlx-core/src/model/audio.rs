//! Audio towers, which turn clips into rows that replace the embeddings of tokens. A tower computes one clip at a time, so the bits of its
//! rows do not depend on other clips.

mod footprint;
mod gemma4;
mod kernel;
mod qwen3_asr;

use std::collections::BTreeMap;
use std::path::Path;

use mlx_rs::{Array, Dtype};

use self::footprint::ClipCosts;
pub use self::footprint::{AudioFootprint, TowerFootprints};
use self::gemma4::{AudioConfig, Gemma4AudioTower};
use self::qwen3_asr::{Qwen3AsrTower, TowerConfig};
use crate::config::{Fields, thinker};
use crate::error::{Error, Result};
use crate::model::linear::{Linear, Part};
use crate::model::norm::{NormConfig, NormKind};
use crate::processor::{AudioClip, ClipFrames};
use crate::quantization::QuantizationConfig;
use crate::weights::{Entry, Progress, WeightPolicy, Weights};

/// Prefixes of tensors here, and in files. The last ones are always there.
type Names = &'static [(&'static str, &'static str)];

/// The names in files: those of MLX's tools, and the published ones.
const GEMMA4: &[Names] = &[
    &[("model.audio_tower.", "audio_tower."), ("model.embed_audio.", "embed_audio.")],
    &[("model.audio_tower.", "model.audio_tower."), ("model.embed_audio.", "model.embed_audio.")],
];
/// Both have the names of transformers, or those of the first publication.
const QWEN3_ASR: &[Names] = &[
    &[("model.audio_tower.", "audio_tower."), ("model.multi_modal_projector.", "multi_modal_projector.")],
    &[
        ("model.audio_tower.", "model.audio_tower."),
        ("model.multi_modal_projector.", "model.multi_modal_projector."),
    ],
    &[
        ("model.audio_tower.", "audio_tower."),
        ("model.multi_modal_projector.linear_1.", "audio_tower.proj1."),
        ("model.multi_modal_projector.linear_2.", "audio_tower.proj2."),
    ],
    &[
        ("model.audio_tower.", "thinker.audio_tower."),
        ("model.multi_modal_projector.linear_1.", "thinker.audio_tower.proj1."),
        ("model.multi_modal_projector.linear_2.", "thinker.audio_tower.proj2."),
    ],
];

/// Loads the tower of the model in `folder`, or returns why it cannot be loaded; `None` if the model has none.
pub(super) fn load_if_present(folder: &Path, policy: WeightPolicy) -> Option<Result<AudioTower>> {
    is_there(folder).then(|| AudioTower::load(folder, policy, &mut |_, _| {}))
}

/// Reads only the file headers. Returns the memory of the tower of the model in `folder`, or the reason that it cannot be loaded. `None` if
/// the model has none.
pub(super) fn survey(folder: &Path, policy: WeightPolicy) -> Option<Result<AudioFootprint>> {
    let footprint = || {
        let fields = Fields::read(&folder.join("config.json"))?;
        let config = Config::read(&fields)?;
        let tally = open(folder, &fields, config.names(), policy, &mut |_, _| {})?.survey().0;
        Ok(AudioFootprint::new(config.costs(), tally.device_bytes, tally.float_bytes()))
    };
    is_there(folder).then(footprint)
}

fn is_there(folder: &Path) -> bool {
    Fields::read(&folder.join("config.json"))
        .and_then(|it| thinker(&it))
        .is_ok_and(|fields| fields.has("audio_config"))
}

/// A tower with its projector. Its weights never change.
pub struct AudioTower {
    kind: Kind,
    frames: ClipFrames,
    dtype: Dtype,
    footprint: AudioFootprint,
}

enum Kind {
    Gemma4 {
        /// `None` if the model projects the frames themselves.
        conformer: Option<Box<Gemma4AudioTower>>,
        /// The norm before the projection to the width of the text.
        norm: NormConfig,
        projection: Linear,
    },
    Qwen3Asr(Box<Qwen3AsrTower>),
}

/// The config of a tower, with the width of the text.
struct Config {
    kind: KindConfig,
    frames: ClipFrames,
    text_width: usize,
}

enum KindConfig {
    Gemma4 {
        conformer: Option<AudioConfig>,
        norm: NormConfig,
        /// The width of the rows before the projection.
        width: usize,
    },
    Qwen3Asr(TowerConfig),
}

impl Config {
    fn read(fields: &Fields) -> Result<Self> {
        let family = fields.optional_text("model_type")?.unwrap_or_default();
        let fields = &thinker(fields)?;
        let missing = || fields.error("audio_config", "is missing; the model does not support audio");
        let audio = fields.section("audio_config")?.ok_or_else(missing)?;
        let text = fields.section("text_config")?.unwrap_or_else(|| fields.clone());
        let frames = ClipFrames::of(family, &audio)?.ok_or_else(|| {
            fields.error("model_type", format_args!("{family:?} does not support audio yet"))
        })?;
        let text_width = |usual: usize| Ok::<_, Error>(text.optional_size("hidden_size")?.unwrap_or(usual));
        let gemma4 = |conformer: Option<AudioConfig>| {
            let eps = audio.optional_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
            let width = conformer.as_ref().map_or(frames.width(), |config| config.output_proj_dims);
            let norm = NormConfig { kind: NormKind::Rms, eps };
            let kind = KindConfig::Gemma4 { conformer, norm, width };
            Ok(Self { kind, frames, text_width: text_width(2304)? })
        };
        match frames {
            ClipFrames::LogMel { bins } => gemma4(Some(AudioConfig::read(&audio, bins)?)),
            ClipFrames::Samples { .. } => gemma4(None),
            ClipFrames::ChunkedMel { bins } => {
                let text_width = text_width(2048)?;
                let kind = KindConfig::Qwen3Asr(TowerConfig::read(&audio, bins, text_width)?);
                Ok(Self { kind, frames, text_width })
            }
        }
    }

    fn names(&self) -> &'static [Names] {
        match self.kind {
            KindConfig::Gemma4 { .. } => GEMMA4,
            KindConfig::Qwen3Asr(_) => QWEN3_ASR,
        }
    }

    fn costs(&self) -> ClipCosts {
        let (numbers, frames_at_once) = match &self.kind {
            KindConfig::Gemma4 { conformer: Some(config), .. } => (config.numbers(), None),
            KindConfig::Gemma4 { width, .. } => ((0, 4 * width), None),
            KindConfig::Qwen3Asr(config) => (config.numbers(), Some(TowerConfig::FRAMES_AT_ONCE)),
        };
        ClipCosts { frames: self.frames, row_width: self.text_width, numbers, frames_at_once }
    }
}

impl AudioTower {
    /// Loads the tower of the model in `folder`. An error names the family if its tower is not supported.
    pub fn load(folder: &Path, policy: WeightPolicy, progress: Progress) -> Result<Self> {
        let fields = Fields::read(&folder.join("config.json"))?;
        let config = Config::read(&fields)?;
        let mut weights = open(folder, &fields, config.names(), policy, progress)?;
        let kind = match &config.kind {
            KindConfig::Gemma4 { conformer, norm, width } => {
                let load = |config| Gemma4AudioTower::load(&mut weights, "model.audio_tower", config);
                let conformer = conformer.as_ref().map(load).transpose()?.map(Box::new);
                let part =
                    Part { name: "model.embed_audio.embedding_projection", outputs: config.text_width };
                let projection = Linear::load(&mut weights, &[part], *width, false)?;
                Kind::Gemma4 { conformer, norm: *norm, projection }
            }
            KindConfig::Qwen3Asr(tower) => {
                Kind::Qwen3Asr(Box::new(Qwen3AsrTower::load(&mut weights, tower, config.text_width)?))
            }
        };
        let (dtype, tally) = (weights.dtype(), weights.finish()?);
        Ok(Self {
            kind,
            frames: config.frames,
            dtype,
            footprint: AudioFootprint::new(config.costs(), tally.device_bytes, tally.float_bytes()),
        })
    }

    /// Returns the memory of the tower on the device.
    pub fn footprint(&self) -> AudioFootprint {
        self.footprint
    }

    /// Returns the features of a clip, `[rows, width]` with the width of the text's embeddings.
    pub fn features(&self, clip: &AudioClip) -> Result<Array> {
        let (frames, width) = (clip.frames(), self.frames.width());
        if frames == 0 || clip.width() != width {
            let message = format!("has {frames} frames of {} numbers; the tower needs {width}", clip.width());
            return Err(Error::request("audio", message));
        }
        let input = Array::from_slice(clip.values(), &[frames as i32, width as i32]).as_dtype(self.dtype)?;
        match &self.kind {
            Kind::Gemma4 { conformer, norm, projection } => {
                let rows = conformer.as_ref().map_or(Ok(input.clone()), |tower| tower.forward(&input))?;
                projection.forward(&norm.plain(&rows)?)
            }
            Kind::Qwen3Asr(tower) => tower.forward(&input),
        }
    }
}

/// Opens the weights of a tower, under the names of published files or of MLX's tools.
fn open<'a>(
    folder: &Path,
    fields: &Fields,
    names: &[Names],
    policy: WeightPolicy,
    progress: Progress<'a>,
) -> Result<Weights<'a>> {
    let mut weights = Weights::open(folder, QuantizationConfig::read(fields)?, policy, progress)?;
    let has = |begin: &str| weights.names().any(|name| name.starts_with(begin));
    let is_there = |names: &&Names| names.last().is_some_and(|(_, theirs)| has(theirs));
    let Some(found) = names.iter().find(is_there) else {
        return Err(Error::file(folder, "has no tensors of an audio tower"));
    };
    weights.rename(found);
    weights.skip_all(|name| !is_part(names, name));
    Ok(weights)
}

/// Removes the tensors of a supported tower from `weights`, without reading them. Returns them by the names in files of MLX's tools.
pub(super) fn take_tensors(fields: &Fields, weights: &mut Weights) -> BTreeMap<String, Entry> {
    let Ok(config) = Config::read(fields) else { return BTreeMap::new() };
    let is_part = |name: &str| is_part(config.names(), name);
    let of_tower = weights.entries().iter().filter(|(name, _)| is_part(name));
    let tensors = of_tower.map(|(name, entry)| (in_mlx(name).to_owned(), entry.clone())).collect();
    weights.skip_all(is_part);
    tensors
}

/// Returns true for the name of a tower's tensor in a file.
fn is_part(names: &[Names], name: &str) -> bool {
    names.iter().copied().flatten().any(|(_, theirs)| name.starts_with(theirs))
}

fn in_mlx(name: &str) -> &str {
    ["model.", "thinker."].iter().find_map(|part| name.strip_prefix(part)).unwrap_or(name)
}
