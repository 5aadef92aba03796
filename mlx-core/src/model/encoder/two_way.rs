//! Decoders that were trained further with attention in both directions, for embeddings.

use super::config::EncoderConfig;
use super::names::EncoderNames;
use crate::config::Fields;
use crate::error::Result;
use crate::model::family;

/// The families, with the key of config.json and its value that make attention two-way.
const FAMILIES: [(&str, &str, bool); 5] = [
    ("gemma3_text", "use_bidirectional_attention", true),
    ("llama", "is_causal", false),
    ("mistral", "is_causal", false),
    ("qwen2", "is_causal", false),
    ("qwen3", "is_causal", false),
];

/// Reads the config of such a decoder. `None` for all other models.
pub(super) fn read(fields: &Fields) -> Result<Option<(String, EncoderConfig)>> {
    let Some(name) = fields.optional_text("model_type")? else { return Ok(None) };
    let Some((_, key, value)) = FAMILIES.iter().find(|(family, ..)| *family == name) else { return Ok(None) };
    if fields.optional_flag(key)? != Some(*value) {
        return Ok(None);
    }
    let causal = fields.without(key);
    let (family, mut stack) = family::read(&causal)?;
    let is_halved = *key == "use_bidirectional_attention";
    for layer in &mut stack.layers {
        layer.sliding_window = layer.sliding_window.map(|window| two_way_window(window, is_halved));
    }
    Ok(Some((
        family,
        EncoderConfig {
            stack,
            positions: None,
            token_types: 0,
            embedding_norm: false,
            norm_after_sum: false,
            first_layer_is_normalized: true,
            last_norm: true,
            relative_bias: None,
            head: None,
            names: EncoderNames::LLAMA,
        },
    )))
}

/// Returns the distance from which on tokens are hidden. transformers shows tokens up to the window of config.json on each side, or up to
/// half of it where that counts both sides.
fn two_way_window(window: usize, counts_both_sides: bool) -> usize {
    if counts_both_sides { window / 2 + 1 } else { window + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_show_the_tokens_that_transformers_shows() {
        assert_eq!(two_way_window(8, false), 9, "distances up to 8");
        assert_eq!(two_way_window(512, true), 257, "distances up to 256");
    }
}
