//! Factors that a conversion multiplies weights by. Invariant: pure.

use std::collections::BTreeMap;

use crate::model::{DecoderConfig, LogitScale, MixerKind};
use crate::weights::Entry;

/// The factors of a matrix.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Multipliers {
    /// The factor of the whole matrix.
    pub(super) factor: f32,
    /// The factor of each row; empty if there are none.
    pub(super) by_row: Vec<f32>,
}

impl Multipliers {
    /// Returns true if these tensors are already multiplied: only mlx-lm's form has convolutions with a last dimension of 1.
    pub(super) fn are_in(tensors: &BTreeMap<String, Entry>) -> bool {
        tensors
            .iter()
            .any(|(name, entry)| name.ends_with("mamba.conv1d.weight") && entry.shape.last() == Some(&1))
    }

    /// Returns the factors in config.json that mlx-lm multiplies this matrix of Falcon-H1 by.
    pub(super) fn of(config: &DecoderConfig, name: &str) -> Option<Self> {
        let both = config.layers.iter().find_map(|layer| match layer.mixer {
            MixerKind::BesideMamba2(both) => Some(both),
            _ => None,
        })?;
        let [gate, down] = config.feed_forward.multipliers.unwrap_or([1.0; 2]);
        let head = match config.head.scale {
            Some(LogitScale::Times(factor)) => factor,
            _ => 1.0,
        };
        let module = name.strip_suffix(".weight")?.rsplit('.').next()?;
        let factor = match module {
            "embed_tokens" => config.embedding_scale.unwrap_or(1.0),
            "lm_head" => head,
            "q_proj" | "k_proj" => both.attention_in_multiplier,
            "o_proj" => both.attention_out_multiplier,
            "in_proj" => both.ssm_in_multiplier,
            "out_proj" => both.ssm_out_multiplier,
            "gate_proj" => gate,
            "down_proj" => down,
            _ => return None,
        };
        let mut by_row = Vec::new();
        if module == "in_proj"
            && let Some(factors) = both.mamba.multipliers
            && factors.iter().any(|factor| factor.to_bits() != 1.0_f32.to_bits())
        {
            let parts = both.mamba.widths().into_iter().zip(factors);
            by_row = parts.flat_map(|(width, factor)| std::iter::repeat_n(factor, width)).collect();
        }
        (factor.to_bits() != 1.0_f32.to_bits() || !by_row.is_empty()).then_some(Self { factor, by_row })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::Multipliers;
    use crate::config::Fields;
    use crate::model::family;

    /// The weights of a GGUF file contain the factors, and may be packed.
    #[test]
    fn factors_of_one_change_no_matrix() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models/falcon_h1-f32");
        let path = folder.join("config.json");
        let bytes = mlx_files::bytes(&path).expect("a fixture");
        let mut config = mlx_files::object(&path, &bytes).expect("an object");
        let of = |config: &serde_json::Map<_, _>| {
            let (_, config) = family::read(&Fields::of(&path, config.clone())).expect("a config");
            Multipliers::of(&config, "model.layers.0.mamba.in_proj.weight")
        };
        assert!(of(&config).is_some_and(|it| !it.by_row.is_empty()));
        config.insert("ssm_in_multiplier".to_owned(), json!(1.0));
        config.insert("ssm_multipliers".to_owned(), json!([1.0, 1.0, 1.0, 1.0, 1.0]));
        assert_eq!(of(&config), None);
    }
}
