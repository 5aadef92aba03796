//! Vision towers, which turn pictures into rows that replace the embeddings of tokens. A tower computes one picture at a time, so the bits
//! of its rows do not depend on other pictures.

mod attention;
mod axial_rope;
mod config;
mod footprint;
mod gemma4;
mod gemma4_unified;
mod merger;
mod patches;
mod pixtral;
mod places;
mod qwen;
mod qwen2;
mod siglip2;

use std::collections::BTreeMap;
use std::path::Path;

use chat_format::Pixels;
use mlx_rs::Array;

use self::config::{Normalization, PixtralConfig};
use self::footprint::Shape;
pub use self::footprint::VisionFootprint;
use self::gemma4::{Gemma4Config, Gemma4Tower};
use self::gemma4_unified::{UnifiedConfig, UnifiedEmbedder};
use self::merger::Projector;
use self::patches::Order;
use self::pixtral::PixtralTower;
use self::places::Places;
use self::qwen::{QwenConfig, QwenTower};
use self::qwen2::{Qwen2Config, Qwen2Tower};
use self::siglip2::{Lfm2Projector, Siglip2Config, Siglip2Tower};
use crate::config::Fields;
use crate::error::{Error, Result};
use crate::processor::VisionFamily;
use crate::quantization::QuantizationConfig;
use crate::weights::{Entry, Progress, WeightPolicy, Weights};

/// Loads the tower of the model in `folder`, or returns why it cannot be loaded; `None` if the model has none.
pub(super) fn load_if_present(folder: &Path, policy: WeightPolicy) -> Option<Result<Vision>> {
    is_there(folder).then(|| Vision::load(folder, policy, &mut |_, _| {}))
}

/// Reads only the file headers. Returns the memory of the tower of the model in `folder`, or the reason that it cannot be loaded. `None` if
/// the model has none.
pub(super) fn survey(folder: &Path, policy: WeightPolicy) -> Option<Result<VisionFootprint>> {
    let footprint = || {
        let fields = Fields::read(&folder.join("config.json"))?;
        let config = Config::read(&fields)?;
        let silent = &mut |_, _| {};
        let tally = open(folder, &fields, policy, silent, config.places())?.survey().0;
        Ok(VisionFootprint::new(&config.shape(), tally.device_bytes, tally.float_bytes()))
    };
    is_there(folder).then(footprint)
}

fn is_there(folder: &Path) -> bool {
    Fields::read(&folder.join("config.json")).is_ok_and(|fields| fields.has("vision_config"))
}

/// Removes the tower's tensors of a model with this config from `weights`, without reading them. Returns them by mlx-vlm's names. Returns
/// none if the tower is not supported.
pub(super) fn take_tensors(fields: &Fields, weights: &mut Weights) -> Result<BTreeMap<String, Entry>> {
    let Some(vision) = fields.section("vision_config")? else { return Ok(BTreeMap::new()) };
    let Some(places) = known(fields, &vision)?.map(Places::of) else { return Ok(BTreeMap::new()) };
    let Some(place) = places.find(weights.entries()) else { return Ok(BTreeMap::new()) };
    let of_tower = weights.entries().iter().filter(|(name, _)| place.has(name));
    let tensors = of_tower.map(|(name, entry)| (places.in_mlx_vlm(place, name), entry.clone())).collect();
    weights.skip_all(|name| place.has(name));
    Ok(tensors)
}

/// Returns the family of the tower that this section of config.json describes, if it is supported.
fn known(fields: &Fields, vision: &Fields) -> Result<Option<VisionFamily>> {
    let family = fields.optional_text("model_type")?.unwrap_or_default();
    Ok(VisionFamily::of(family, vision.optional_text("model_type")?.unwrap_or_default()))
}

/// A tower with its projector. Its weights never change.
pub struct Vision {
    tower: Tower,
    normalization: Normalization,
    /// The side of a patch, in pixels.
    patch_size: usize,
    /// The side of a merged patch, which becomes one row, in pixels.
    merged_patch: usize,
    footprint: VisionFootprint,
}

enum Tower {
    Gemma4(Gemma4Tower),
    Gemma4Unified(UnifiedEmbedder),
    Lfm2(Siglip2Tower, Lfm2Projector),
    Pixtral(PixtralTower, Projector),
    Qwen(QwenTower),
    Qwen2(Qwen2Tower),
}

/// The config of a tower.
enum Config {
    Gemma4(Gemma4Config),
    Gemma4Unified(UnifiedConfig),
    Lfm2(Siglip2Config),
    Pixtral(PixtralConfig),
    Qwen(QwenConfig),
    Qwen2(Qwen2Config),
}

impl Config {
    fn read(fields: &Fields) -> Result<Self> {
        let family = fields.optional_text("model_type")?.unwrap_or_default();
        let missing = || fields.error("vision_config", "is missing; the model does not support images");
        let vision = fields.section("vision_config")?.ok_or_else(missing)?;
        let text = fields.section("text_config")?.unwrap_or_else(|| fields.clone());
        match known(fields, &vision)? {
            Some(VisionFamily::Gemma4) => Gemma4Config::read(&vision, &text).map(Self::Gemma4),
            Some(VisionFamily::Gemma4Unified) => UnifiedConfig::read(&vision, &text).map(Self::Gemma4Unified),
            Some(VisionFamily::Lfm2) => Siglip2Config::read(fields, &vision, &text).map(Self::Lfm2),
            Some(VisionFamily::Pixtral) => PixtralConfig::read(fields, &vision, &text).map(Self::Pixtral),
            Some(VisionFamily::Qwen) => QwenConfig::read(family, &vision, &text).map(Self::Qwen),
            Some(VisionFamily::Qwen2) => Qwen2Config::read_2(&vision, &text).map(Self::Qwen2),
            Some(VisionFamily::Qwen25) => Qwen2Config::read_2_5(&vision, &text).map(Self::Qwen2),
            None => {
                let kind = vision.optional_text("model_type")?.unwrap_or_default();
                let message =
                    format_args!("{family:?} with a tower of type {kind:?} does not support images yet");
                Err(fields.error("model_type", message))
            }
        }
    }

    fn shape(&self) -> Shape {
        match self {
            Self::Gemma4(config) => config.shape,
            Self::Gemma4Unified(config) => config.shape,
            Self::Lfm2(config) => config.shape,
            Self::Pixtral(config) => config.shape,
            Self::Qwen(config) => config.shape,
            Self::Qwen2(config) => config.shape,
        }
    }

    fn places(&self) -> Places {
        Places::of(match self {
            Self::Gemma4(_) => VisionFamily::Gemma4,
            Self::Gemma4Unified(_) => VisionFamily::Gemma4Unified,
            Self::Lfm2(_) => VisionFamily::Lfm2,
            Self::Pixtral(_) => VisionFamily::Pixtral,
            Self::Qwen(_) => VisionFamily::Qwen,
            Self::Qwen2(_) => VisionFamily::Qwen2,
        })
    }
}

impl Vision {
    /// Loads the tower of the model in `folder`. An error names the family if its tower is not supported.
    pub fn load(folder: &Path, policy: WeightPolicy, progress: Progress) -> Result<Self> {
        let fields = Fields::read(&folder.join("config.json"))?;
        let config = Config::read(&fields)?;
        let mut weights = open(folder, &fields, policy, progress, config.places())?;
        let (tower, normalization) = match &config {
            Config::Gemma4(config) => {
                let (tower, projector) = ("model.vision_tower", "model.embed_vision");
                let tower = Gemma4Tower::load(&mut weights, tower, projector, config)?;
                // The mean in the config of the image processor is not used.
                (Tower::Gemma4(tower), Normalization::HALVES)
            }
            Config::Gemma4Unified(config) => {
                let (name, projector) = ("model.vision_embedder", "model.embed_vision");
                let embedder = UnifiedEmbedder::load(&mut weights, name, projector, config)?;
                (Tower::Gemma4Unified(embedder), Normalization::NONE)
            }
            Config::Lfm2(config) => {
                let tower = Siglip2Tower::load(&mut weights, "model.vision_tower", config)?;
                let projector = Lfm2Projector::load(&mut weights, "model.multi_modal_projector", config)?;
                (Tower::Lfm2(tower, projector), Normalization::read(folder, Normalization::HALVES)?)
            }
            Config::Pixtral(config) => {
                let tower = PixtralTower::load(&mut weights, "model.vision_tower", config)?;
                let projector = Projector::load(&mut weights, "model.multi_modal_projector", config)?;
                (Tower::Pixtral(tower, projector), Normalization::read(folder, Normalization::CLIP)?)
            }
            Config::Qwen(config) => {
                let tower = QwenTower::load(&mut weights, "model.visual", config)?;
                (Tower::Qwen(tower), Normalization::read(folder, Normalization::HALVES)?)
            }
            Config::Qwen2(config) => {
                let tower = Qwen2Tower::load(&mut weights, "model.visual", config)?;
                (Tower::Qwen2(tower), Normalization::read(folder, Normalization::CLIP)?)
            }
        };
        let (tally, shape) = (weights.finish()?, config.shape());
        Ok(Self {
            tower,
            normalization,
            patch_size: shape.patch_size,
            merged_patch: shape.patch_size * shape.spatial_merge_size,
            footprint: VisionFootprint::new(&shape, tally.device_bytes, tally.float_bytes()),
        })
    }

    /// Returns the memory of the tower on the device.
    pub fn footprint(&self) -> VisionFootprint {
        self.footprint
    }

    /// Returns the features of a picture: `[rows, width]`, one row per merged patch in reading order. The first numbers of a row, as many as
    /// the width of the text's embeddings, replace an embedding. The others are added to the output of the first layers of the text, layer by
    /// layer. The sides of the picture must be multiples of a merged patch.
    pub fn features(&self, image: &Pixels) -> Result<Array> {
        let (columns, rows) = (image.width() as usize, image.height() as usize);
        let (patch, merged) = (self.patch_size, self.merged_patch);
        if !columns.is_multiple_of(merged) || !rows.is_multiple_of(merged) {
            let message = format!("is {columns} x {rows} pixels; both must be multiples of {merged}");
            return Err(Error::request("image", message));
        }
        let grid = (rows / patch, columns / patch);
        let by_pixel = matches!(self.tower, Tower::Gemma4(_) | Tower::Gemma4Unified(_) | Tower::Lfm2(..));
        let order = if by_pixel { Order::ByPixel } else { Order::ByColor };
        let patches = patches::of(image, patch, &self.normalization, order);
        match &self.tower {
            Tower::Gemma4(tower) => tower.forward(&patches, grid),
            Tower::Gemma4Unified(embedder) => embedder.forward(&patches, grid),
            Tower::Lfm2(tower, projector) => projector.forward(&tower.forward(&patches, grid)?, grid),
            Tower::Pixtral(tower, projector) => projector.forward(&tower.forward(&patches, grid)?, grid),
            Tower::Qwen(tower) => tower.forward(&patches, grid),
            Tower::Qwen2(tower) => tower.forward(&patches, grid),
        }
    }
}

/// Opens the weights of a tower that is at one of these places.
fn open<'a>(
    folder: &Path,
    fields: &Fields,
    policy: WeightPolicy,
    progress: Progress<'a>,
    places: Places,
) -> Result<Weights<'a>> {
    let mut weights = Weights::open(folder, QuantizationConfig::read(fields)?, policy, progress)?;
    let Some(place) = places.find(weights.entries()) else {
        return Err(Error::file(folder, "has no tensors of a vision tower"));
    };
    weights.rename(place.names);
    weights.skip_all(|name| !place.has(name));
    Ok(weights)
}
