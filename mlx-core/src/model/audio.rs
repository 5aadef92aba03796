//! Audio towers, which turn clips into rows that replace the embeddings of tokens. A tower computes one clip at a time, so the bits of its
//! rows do not depend on other clips.

mod footprint;
mod gemma4;

use std::collections::BTreeMap;
use std::path::Path;

use mlx_rs::{Array, Dtype};

use self::footprint::ClipCosts;
pub use self::footprint::{AudioFootprint, TowerFootprints};
use self::gemma4::{AudioConfig, Gemma4AudioTower};
use crate::config::Fields;
use crate::error::{Error, Result};
use crate::model::linear::{Linear, Part};
use crate::model::norm::{NormConfig, NormKind};
use crate::processor::{AudioClip, ClipFrames};
use crate::quantization::QuantizationConfig;
use crate::weights::{Entry, Progress, WeightPolicy, Weights};

/// The prefixes of a tower's tensors here, and in files of MLX's tools.
const NAMES: [(&str, &str); 2] =
    [("model.audio_tower.", "audio_tower."), ("model.embed_audio.", "embed_audio.")];

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
        let tally = open(folder, &fields, policy, &mut |_, _| {})?.survey().0;
        Ok(AudioFootprint::new(config.costs(), tally.device_bytes, tally.float_bytes()))
    };
    is_there(folder).then(footprint)
}

fn is_there(folder: &Path) -> bool {
    Fields::read(&folder.join("config.json")).is_ok_and(|fields| fields.has("audio_config"))
}

/// A tower with its projector. Its weights never change.
pub struct AudioTower {
    kind: Kind,
    /// The norm before the projection to the width of the text.
    norm: NormConfig,
    projection: Linear,
    frames: ClipFrames,
    dtype: Dtype,
    footprint: AudioFootprint,
}

enum Kind {
    Conformer(Box<Gemma4AudioTower>),
    /// The model projects the frames themselves.
    None,
}

/// The config of a tower, with the width of the text.
struct Config {
    conformer: Option<AudioConfig>,
    frames: ClipFrames,
    norm: NormConfig,
    /// The width of the rows before the projection.
    width: usize,
    text_width: usize,
}

impl Config {
    fn read(fields: &Fields) -> Result<Self> {
        let missing = || fields.error("audio_config", "is missing; the model does not support audio");
        let audio = fields.section("audio_config")?.ok_or_else(missing)?;
        let text = fields.section("text_config")?.unwrap_or_else(|| fields.clone());
        let family = fields.optional_text("model_type")?.unwrap_or_default();
        let frames = ClipFrames::of(family, &audio)?.ok_or_else(|| {
            fields.error("model_type", format_args!("{family:?} does not support audio yet"))
        })?;
        let conformer = match frames {
            ClipFrames::LogMel { bins } => Some(AudioConfig::read(&audio, bins)?),
            ClipFrames::Samples { .. } => None,
        };
        Ok(Self {
            frames,
            norm: NormConfig {
                kind: NormKind::Rms,
                eps: audio.optional_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            },
            width: conformer.as_ref().map_or(frames.width(), |config| config.output_proj_dims),
            conformer,
            text_width: text.optional_size("hidden_size")?.unwrap_or(2304),
        })
    }

    fn costs(&self) -> ClipCosts {
        ClipCosts {
            frames: self.frames,
            row_width: self.text_width,
            numbers: self.conformer.as_ref().map_or((0, 4 * self.width), AudioConfig::numbers),
        }
    }
}

impl AudioTower {
    /// Loads the tower of the model in `folder`. An error names the family if its tower is not supported.
    pub fn load(folder: &Path, policy: WeightPolicy, progress: Progress) -> Result<Self> {
        let fields = Fields::read(&folder.join("config.json"))?;
        let config = Config::read(&fields)?;
        let mut weights = open(folder, &fields, policy, progress)?;
        let kind = match &config.conformer {
            Some(config) => {
                let tower = Gemma4AudioTower::load(&mut weights, "model.audio_tower", config)?;
                Kind::Conformer(Box::new(tower))
            }
            None => Kind::None,
        };
        let part = Part { name: "model.embed_audio.embedding_projection", outputs: config.text_width };
        let projection = Linear::load(&mut weights, &[part], config.width, false)?;
        let (dtype, tally) = (weights.dtype(), weights.finish()?);
        Ok(Self {
            kind,
            norm: config.norm,
            projection,
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
        let rows = match &self.kind {
            Kind::Conformer(tower) => tower.forward(&input)?,
            Kind::None => input,
        };
        self.projection.forward(&self.norm.plain(&rows)?)
    }
}

/// Opens the weights of a tower, under the names of published files or of MLX's tools.
fn open<'a>(
    folder: &Path,
    fields: &Fields,
    policy: WeightPolicy,
    progress: Progress<'a>,
) -> Result<Weights<'a>> {
    let mut weights = Weights::open(folder, QuantizationConfig::read(fields)?, policy, progress)?;
    let has = |begin: &str| weights.names().any(|name| name.starts_with(begin));
    let [_, (projector, projector_in_mlx)] = NAMES;
    if has(projector_in_mlx) {
        weights.rename(&NAMES);
    } else if !has(projector) {
        return Err(Error::file(folder, "has no tensors of an audio tower"));
    }
    weights.skip_all(|name| !is_part(name));
    Ok(weights)
}

/// Removes the tensors of a supported tower from `weights`, without reading them. Returns them by the names in files of MLX's tools.
pub(super) fn take_tensors(fields: &Fields, weights: &mut Weights) -> BTreeMap<String, Entry> {
    if Config::read(fields).is_err() {
        return BTreeMap::new();
    }
    let of_tower = weights.entries().iter().filter(|(name, _)| is_part(name));
    let tensors = of_tower.map(|(name, entry)| (in_mlx(name).to_owned(), entry.clone())).collect();
    weights.skip_all(is_part);
    tensors
}

/// Returns true for the name of a tower's tensor in a file.
fn is_part(name: &str) -> bool {
    NAMES.iter().any(|(_, part)| in_mlx(name).starts_with(part))
}

fn in_mlx(name: &str) -> &str {
    name.strip_prefix("model.").unwrap_or(name)
}
