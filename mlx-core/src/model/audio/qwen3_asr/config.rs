//! The config of Qwen3-ASR's audio tower.

use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::Activation;
use crate::processor::{CHUNK_FRAMES, ClipFrames};

/// The maximum of numbers per row in a config.
const WIDEST: usize = 1 << 16;
/// The maximum of layers, heads, channels and chunks per window in a config.
const MAX_COUNT: usize = 4096;
/// The chunks that are reduced to rows at once.
pub(super) const CHUNKS_AT_ONCE: usize = 2;

/// The sizes of the tower.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::model::audio) struct TowerConfig {
    /// The numbers in a frame.
    pub(super) bins: usize,
    pub(super) hidden_size: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// The width of feed-forward blocks.
    pub(super) intermediate_size: usize,
    /// The channels of the convolutions.
    pub(super) channels: usize,
    /// The rows of a window of the attention.
    pub(super) window: usize,
    pub(super) activation: Activation,
}

impl TowerConfig {
    /// The maximum number of frames that are reduced to rows at once.
    pub(in crate::model::audio) const FRAMES_AT_ONCE: usize = CHUNKS_AT_ONCE * CHUNK_FRAMES;

    /// Reads `audio_config`, for frames with `bins` numbers and a text of `text_width`.
    pub(in crate::model::audio) fn read(audio: &Fields, bins: usize, text_width: usize) -> Result<Self> {
        let within = |key: &str, usual: usize, most: usize| match audio.optional_size(key)?.unwrap_or(usual) {
            size if (1..=most).contains(&size) => Ok(size),
            size => Err(audio.error(key, format_args!("is {size}; it must be from 1 to {most}"))),
        };
        let expect = |key: &str, needed: usize| match audio.optional_size(key)? {
            Some(size) if size != needed => {
                Err(audio.error(key, format_args!("is {size}; only {needed} is supported")))
            }
            _ => Ok(()),
        };
        expect("n_window", CHUNK_FRAMES / 2)?;
        expect("max_position_embeddings", ClipFrames::ChunkedMel { bins }.rows(CHUNK_FRAMES))?;
        expect("output_dim", text_width)?;
        let hidden_size = within("d_model", 1024, WIDEST)?;
        let heads = within("encoder_attention_heads", 16, MAX_COUNT)?;
        if !hidden_size.is_multiple_of(heads) || !hidden_size.is_multiple_of(2) {
            let message =
                format_args!("is {hidden_size}; it must be even and a multiple of the {heads} heads");
            return Err(audio.error("d_model", message));
        }
        let frames = within("n_window_infer", 800, CHUNK_FRAMES * MAX_COUNT)?;
        if !frames.is_multiple_of(CHUNK_FRAMES) {
            let message = format_args!("is {frames}; it must be a multiple of {CHUNK_FRAMES}");
            return Err(audio.error("n_window_infer", message));
        }
        let name = audio.optional_text("activation_function")?.unwrap_or("gelu");
        let unknown = || audio.error("activation_function", format_args!("{name:?} is not supported"));
        Ok(Self {
            bins,
            hidden_size,
            layers: within("encoder_layers", 24, MAX_COUNT)?,
            heads,
            intermediate_size: within("encoder_ffn_dim", 4096, WIDEST)?,
            channels: within("downsample_hidden_size", 480, MAX_COUNT)?,
            window: ClipFrames::ChunkedMel { bins }.rows(frames),
            activation: Activation::named(name).ok_or_else(unknown)?,
        })
    }

    /// Returns upper bounds of the temporary numbers per frame and per row.
    pub(in crate::model::audio) fn numbers(&self) -> (usize, usize) {
        // A quarter of the numbers remain after the first convolution, per channel, and exist up to eight times in the activation function.
        // The inputs of the second convolution, side by side, are about half of the numbers per channel.
        let convolutions = 3 * self.bins * self.channels;
        // Queries, keys and values exist twice. The block between the projections of a layer exists four times.
        let row = 16 * self.hidden_size + 4 * self.intermediate_size + 2 * self.heads * self.window;
        (convolutions, row)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    fn read(audio: &Value) -> Result<TowerConfig> {
        let audio = audio.as_object().expect("an object").clone();
        TowerConfig::read(&Fields::of(Path::new("config.json"), audio), 128, 2048)
    }

    #[test]
    fn omitted_sizes_have_the_defaults_of_transformers() {
        let config = read(&json!({})).expect("a config");
        let sizes =
            [config.hidden_size, config.layers, config.heads, config.intermediate_size, config.channels];
        assert_eq!((sizes, config.window), ([1024, 24, 16, 4096, 480], 104));
    }

    #[test]
    fn other_shapes_are_refused_by_name() {
        for (key, value, why) in [
            ("n_window", json!(40), "is 40; only 50 is supported"),
            ("max_position_embeddings", json!(25), "is 25; only 13 is supported"),
            ("output_dim", json!(1024), "is 1024; only 2048 is supported"),
            ("n_window_infer", json!(150), "is 150; it must be a multiple of 100"),
            ("d_model", json!(1000), "is 1000; it must be even and a multiple of the 16 heads"),
            ("encoder_layers", json!(1 << 20), "is 1048576; it must be from 1 to 4096"),
            ("activation_function", json!("relu6"), "\"relu6\" is not supported"),
        ] {
            let error = read(&json!({ key: value })).expect_err(key).to_string();
            assert!(error.contains(key) && error.contains(why), "{error}");
        }
    }
}
