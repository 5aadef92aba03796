//! The names of a tower's tensors in published files and in files of MLX's tools. Invariant: pure.

use std::collections::BTreeMap;

use crate::processor::VisionFamily;
use crate::weights::Entry;

/// Pairs of prefixes: the name here, and its replacement in the files.
type Names = &'static [(&'static str, &'static str)];

/// A possible location of a tower in the files.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TensorLayout {
    /// The prefix that identifies it.
    marker_prefix: &'static str,
    pub(super) names: Names,
}

/// All locations of a family's tower. The one without a renaming has the names that are used here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    all: &'static [TensorLayout],
    /// The names of mlx-vlm.
    mlx_vlm: Names,
}

const GEMMA4_MLX: Names =
    &[("model.vision_tower.", "vision_tower."), ("model.embed_vision.", "embed_vision.")];
const GEMMA4: Places = Places {
    all: &[
        TensorLayout { marker_prefix: "model.vision_tower.", names: &[] },
        TensorLayout { marker_prefix: "vision_tower.", names: GEMMA4_MLX },
    ],
    mlx_vlm: GEMMA4_MLX,
};

const UNIFIED_MLX: Names =
    &[("model.vision_embedder.", "vision_embedder."), ("model.embed_vision.", "embed_vision.")];
const UNIFIED: Places = Places {
    all: &[
        TensorLayout { marker_prefix: "model.vision_embedder.", names: &[] },
        TensorLayout { marker_prefix: "vision_embedder.", names: UNIFIED_MLX },
    ],
    mlx_vlm: UNIFIED_MLX,
};

const LFM2_MLX: Names = &[("model.vision_tower.", "vision_tower."), ("model.multi_modal", "multi_modal")];
const LFM2: Places = Places {
    all: &[
        TensorLayout {
            marker_prefix: "model.vision_tower.vision_model.",
            names: &[("model.vision_tower.", "model.vision_tower.vision_model.")],
        },
        TensorLayout { marker_prefix: "model.vision_tower.", names: &[] },
        TensorLayout { marker_prefix: "vision_tower.", names: LFM2_MLX },
    ],
    mlx_vlm: LFM2_MLX,
};

/// mlx-vlm omits `model.` and adds `vision_model.` after `vision_tower.`.
const PIXTRAL_MLX: Names =
    &[("model.vision_tower.", "vision_tower.vision_model."), ("model.multi_modal", "multi_modal")];
const PIXTRAL: Places = Places {
    all: &[
        TensorLayout { marker_prefix: "model.vision_tower.", names: &[] },
        TensorLayout { marker_prefix: "vision_tower.vision_model.", names: PIXTRAL_MLX },
        TensorLayout {
            marker_prefix: "vision_tower.",
            names: &[("model.vision_tower.", "vision_tower."), ("model.multi_modal", "multi_modal")],
        },
    ],
    mlx_vlm: PIXTRAL_MLX,
};

const QWEN_MLX: Names = &[("model.visual.", "vision_tower.")];
const QWEN: Places = Places {
    all: &[
        TensorLayout { marker_prefix: "model.visual.", names: &[] },
        TensorLayout { marker_prefix: "visual.", names: &[("model.visual.", "visual.")] },
        TensorLayout { marker_prefix: "vision_tower.", names: QWEN_MLX },
    ],
    mlx_vlm: QWEN_MLX,
};

impl Places {
    pub(super) fn of(family: VisionFamily) -> Self {
        match family {
            VisionFamily::Gemma4 => GEMMA4,
            VisionFamily::Gemma4Unified => UNIFIED,
            VisionFamily::Lfm2 => LFM2,
            VisionFamily::Pixtral => PIXTRAL,
            VisionFamily::Qwen | VisionFamily::Qwen2 | VisionFamily::Qwen25 => QWEN,
        }
    }

    /// Returns the location of the tower in these tensors; `None` if they have none.
    pub(super) fn find(self, tensors: &BTreeMap<String, Entry>) -> Option<&'static TensorLayout> {
        self.all.iter().find(|place| tensors.keys().any(|name| name.starts_with(place.marker_prefix)))
    }

    /// Returns mlx-vlm's name of a tensor of a tower that is at `place`.
    pub(super) fn in_mlx_vlm(self, place: &TensorLayout, name: &str) -> String {
        let here = place.names.iter().find_map(|(ours, there)| moved(name, there, ours));
        let here = here.unwrap_or_else(|| name.to_owned());
        let there = self.mlx_vlm.iter().find_map(|(ours, there)| moved(&here, ours, there));
        there.unwrap_or(here)
    }
}

impl TensorLayout {
    /// Returns true if a tensor belongs to the tower or to its projector.
    pub(super) fn has(&self, name: &str) -> bool {
        let projects = ["multi_modal_projector.", "embed_vision."];
        name.starts_with(self.marker_prefix) || projects.iter().any(|part| name.contains(part))
    }
}

/// Replaces the prefix `from` of a name by `to`; `None` if the name lacks it.
fn moved(name: &str, from: &str, to: &str) -> Option<String> {
    name.strip_prefix(from).map(|rest| format!("{to}{rest}"))
}
