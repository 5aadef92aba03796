//! Vision towers: pictures become rows that stand in for the embeddings of tokens. A tower sees one picture at a time, so that the bits of
//! its rows do not depend on others.

mod attention;
mod axial_rope;
mod config;
mod footprint;
mod merger;
mod patches;
mod pixtral;

use std::path::Path;

use mlx_rs::Array;

use self::config::{Normalization, PixtralConfig};
pub use self::footprint::VisionFootprint;
use self::merger::Projector;
use self::pixtral::PixtralTower;
use crate::config::Fields;
use crate::error::{Error, Result};
use crate::image::Pixels;
use crate::quantization::QuantizationConfig;
use crate::weights::{Progress, WeightPolicy, Weights};

/// The tower of the model in `folder`, or why it cannot be loaded; `None` if the model has none.
pub(super) fn load_if_there(folder: &Path, policy: WeightPolicy) -> Option<Result<Vision>> {
    let is_there = Fields::read(&folder.join("config.json")).is_ok_and(|fields| fields.has("vision_config"));
    is_there.then(|| Vision::load(folder, policy, &mut |_, _| {}))
}

/// A tower with its projector. Its weights never change.
pub struct Vision {
    config: PixtralConfig,
    normalization: Normalization,
    tower: PixtralTower,
    projector: Projector,
    footprint: VisionFootprint,
}

impl Vision {
    /// Loads the tower of the model in `folder`; an error names the family if its tower is not supported.
    pub fn load(folder: &Path, policy: WeightPolicy, progress: Progress) -> Result<Self> {
        let fields = Fields::read(&folder.join("config.json"))?;
        let config = PixtralConfig::read(&fields)?;
        let normalization = Normalization::read(folder)?;
        let mut weights = Weights::open(folder, QuantizationConfig::read(&fields)?, policy, progress)?;
        // mlx-vlm leaves out the first part of the names, and has another one behind it.
        let places: [(&str, &[(&'static str, &'static str)]); 3] = [
            ("model.vision_tower.", &[]),
            (
                "vision_tower.vision_model.",
                &[("model.vision_tower.", "vision_tower.vision_model."), ("model.multi", "multi")],
            ),
            ("vision_tower.", &[("model.vision_tower.", "vision_tower."), ("model.multi", "multi")]),
        ];
        let has = |part: &str| weights.names().any(|name| name.starts_with(part));
        let Some((_, names)) = places.into_iter().find(|(part, _)| has(part)) else {
            return Err(Error::file(folder, "has no tensors of a vision tower"));
        };
        weights.rename(names);
        weights.skip_all(|name| !name.contains("vision_tower.") && !name.contains("multi_modal_projector."));
        let tower = PixtralTower::load(&mut weights, "model.vision_tower", &config)?;
        let projector = Projector::load(&mut weights, "model.multi_modal_projector", &config)?;
        let tally = weights.finish()?;
        let footprint = VisionFootprint::new(&config, tally.device_bytes, tally.float_bytes());
        Ok(Self { config, normalization, tower, projector, footprint })
    }

    /// What it takes on the device.
    pub fn footprint(&self) -> VisionFootprint {
        self.footprint
    }

    /// What a picture is to the text: `[rows, hidden]`, a row for each merged patch, from the top left in reading order. Its sides must be
    /// multiples of a merged patch.
    pub fn features(&self, image: &Pixels) -> Result<Array> {
        let (columns, rows) = (image.width() as usize, image.height() as usize);
        let (patch, merged) = (self.config.patch_size, self.config.merged_patch());
        if !columns.is_multiple_of(merged) || !rows.is_multiple_of(merged) {
            let message = format!("is {columns} x {rows} pixels; both must be multiples of {merged}");
            return Err(Error::request("image", message));
        }
        let grid = (rows / patch, columns / patch);
        let patches = patches::of(image, patch, &self.normalization);
        let hidden = self.tower.forward(&patches, grid)?;
        self.projector.forward(&hidden, grid)
    }
}
