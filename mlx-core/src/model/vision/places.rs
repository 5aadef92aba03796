//! What the tensors of a tower are called: as published, and as MLX's tools write them. Invariant: pure.

use std::collections::BTreeMap;

use crate::processor::VisionFamily;
use crate::weights::Entry;

/// Names here, and what stands for them in the files: the beginnings of both.
type Names = &'static [(&'static str, &'static str)];

/// Where a tower may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The beginning of names that tells.
    tells: &'static str,
    pub(super) names: Names,
}

/// All places of a family's tower. The first has the names here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    all: &'static [Place],
    /// Those of mlx-vlm.
    mlx_vlm: Names,
}

const GEMMA4_MLX: Names =
    &[("model.vision_tower.", "vision_tower."), ("model.embed_vision.", "embed_vision.")];
const GEMMA4: Places = Places {
    all: &[
        Place { tells: "model.vision_tower.", names: &[] },
        Place { tells: "vision_tower.", names: GEMMA4_MLX },
    ],
    mlx_vlm: GEMMA4_MLX,
};

const UNIFIED_MLX: Names =
    &[("model.vision_embedder.", "vision_embedder."), ("model.embed_vision.", "embed_vision.")];
const UNIFIED: Places = Places {
    all: &[
        Place { tells: "model.vision_embedder.", names: &[] },
        Place { tells: "vision_embedder.", names: UNIFIED_MLX },
    ],
    mlx_vlm: UNIFIED_MLX,
};

/// mlx-vlm leaves out the first part of the names, and has another one behind it.
const PIXTRAL_MLX: Names =
    &[("model.vision_tower.", "vision_tower.vision_model."), ("model.multi_modal", "multi_modal")];
const PIXTRAL: Places = Places {
    all: &[
        Place { tells: "model.vision_tower.", names: &[] },
        Place { tells: "vision_tower.vision_model.", names: PIXTRAL_MLX },
        Place {
            tells: "vision_tower.",
            names: &[("model.vision_tower.", "vision_tower."), ("model.multi_modal", "multi_modal")],
        },
    ],
    mlx_vlm: PIXTRAL_MLX,
};

const QWEN_MLX: Names = &[("model.visual.", "vision_tower.")];
const QWEN: Places = Places {
    all: &[
        Place { tells: "model.visual.", names: &[] },
        Place { tells: "visual.", names: &[("model.visual.", "visual.")] },
        Place { tells: "vision_tower.", names: QWEN_MLX },
    ],
    mlx_vlm: QWEN_MLX,
};

impl Places {
    pub(super) fn of(family: VisionFamily) -> Self {
        match family {
            VisionFamily::Gemma4 => GEMMA4,
            VisionFamily::Gemma4Unified => UNIFIED,
            VisionFamily::Pixtral => PIXTRAL,
            VisionFamily::Qwen | VisionFamily::Qwen2 | VisionFamily::Qwen25 => QWEN,
        }
    }

    /// The place where these tensors have their tower; `None` if they have none.
    pub(super) fn find(self, tensors: &BTreeMap<String, Entry>) -> Option<&'static Place> {
        self.all.iter().find(|place| tensors.keys().any(|name| name.starts_with(place.tells)))
    }

    /// What mlx-vlm calls a tensor of a tower that is at `place`.
    pub(super) fn in_mlx_vlm(self, place: &Place, name: &str) -> String {
        let here = place.names.iter().find_map(|(ours, there)| moved(name, there, ours));
        let here = here.unwrap_or_else(|| name.to_owned());
        let there = self.mlx_vlm.iter().find_map(|(ours, there)| moved(&here, ours, there));
        there.unwrap_or(here)
    }
}

impl Place {
    /// Whether a tensor belongs to the tower or to its projector.
    pub(super) fn has(&self, name: &str) -> bool {
        let projects = ["multi_modal_projector.", "embed_vision."];
        name.starts_with(self.tells) || projects.iter().any(|part| name.contains(part))
    }
}

/// A name with another beginning, if it has this one.
fn moved(name: &str, from: &str, to: &str) -> Option<String> {
    name.strip_prefix(from).map(|rest| format!("{to}{rest}"))
}
