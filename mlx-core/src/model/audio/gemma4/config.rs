//! The config of Gemma 4's audio tower.

use crate::config::Fields;
use crate::error::Result;
use crate::model::norm::{NormConfig, NormKind};

/// The maximum of numbers per row in a config.
const WIDEST: usize = 1 << 16;
/// The maximum of layers, heads, taps and rows per block in a config.
const MAX_COUNT: usize = 4096;

#[derive(Debug, Clone, PartialEq)]
pub(in crate::model::audio) struct AudioConfig {
    /// The numbers in a frame.
    pub(super) bins: usize,
    pub(super) hidden_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) subsampling_conv_channels: [usize; 2],
    pub(super) conv_kernel_size: usize,
    pub(super) residual_weight: f32,
    /// The rows of a block. A row attends to itself and to one row less than these before it.
    pub(super) attention_chunk_size: usize,
    pub(super) attention_logit_cap: f32,
    pub(super) use_clipped_linears: bool,
    /// The norms of rows.
    pub(super) norm: NormConfig,
    pub(super) gradient_clipping: f32,
    pub(in crate::model::audio) output_proj_dims: usize,
}

impl AudioConfig {
    /// Reads `audio_config`, for frames with `bins` numbers.
    pub(in crate::model::audio) fn read(audio: &Fields, bins: usize) -> Result<Self> {
        let within = |key: &str, usual: usize, most: usize| match audio.optional_size(key)?.unwrap_or(usual) {
            size if (1..=most).contains(&size) => Ok(size),
            size => Err(audio.error(key, format_args!("is {size}; it must be from 1 to {most}"))),
        };
        let positive = |key: &str, usual: f64| {
            Ok::<_, crate::Error>(audio.optional_positive(key)?.unwrap_or(usual) as f32)
        };
        let hidden_size = within("hidden_size", 1024, WIDEST)?;
        let heads = within("num_attention_heads", 8, MAX_COUNT)?;
        if !hidden_size.is_multiple_of(2 * heads) {
            let message = format_args!("is {heads}; twice that must divide hidden_size, {hidden_size}");
            return Err(audio.error("num_attention_heads", message));
        }
        match audio.optional_text("hidden_act")?.unwrap_or("silu") {
            "silu" | "swish" => {}
            other => {
                return Err(audio.error("hidden_act", format_args!("{other:?} is not supported; silu is")));
            }
        }
        let channels = match &audio.numbers("subsampling_conv_channels")?[..] {
            [] => [128, 32],
            [first, second] if [first, second].iter().all(|it| (1.0..=MAX_COUNT as f64).contains(*it)) => {
                [*first as usize, *second as usize]
            }
            other => {
                let message = format_args!("is {other:?}; two numbers from 1 to {MAX_COUNT} are needed");
                return Err(audio.error("subsampling_conv_channels", message));
            }
        };
        Ok(Self {
            bins,
            hidden_size,
            num_hidden_layers: within("num_hidden_layers", 12, MAX_COUNT)?,
            num_attention_heads: heads,
            subsampling_conv_channels: channels,
            conv_kernel_size: within("conv_kernel_size", 5, MAX_COUNT)?,
            residual_weight: positive("residual_weight", 0.5)?,
            attention_chunk_size: chunk_size(audio, within("attention_chunk_size", 12, MAX_COUNT)?)?,
            attention_logit_cap: positive("attention_logit_cap", 50.0)?,
            use_clipped_linears: audio.optional_flag("use_clipped_linears")?.unwrap_or(true),
            norm: NormConfig { kind: NormKind::Rms, eps: positive("rms_norm_eps", 1e-6)? },
            gradient_clipping: positive("gradient_clipping", 1e10)?,
            output_proj_dims: within("output_proj_dims", 1536, WIDEST)?,
        })
    }

    /// Returns upper bounds of the temporary numbers per frame and per row.
    pub(in crate::model::audio) fn numbers(&self) -> (usize, usize) {
        let ([first, second], hidden) = (self.subsampling_conv_channels, self.hidden_size);
        // Half of the frames and bins remain after the first convolution: its output, the norm and its copies, and the inputs of the second
        // one side by side.
        let convolutions = self.bins * (first + 9 * first / 4 + second);
        // The widest block of a layer has four times the width, before and after its activation. Attention has queries, twice the keys and
        // values, and copies. Scores exist four times.
        let scores = 4 * self.num_attention_heads * 3 * self.attention_chunk_size;
        (convolutions, 32 * hidden + scores + 2 * self.output_proj_dims)
    }
}

/// Returns the rows of a block, if the attention reaches exactly one block back and not ahead.
fn chunk_size(audio: &Fields, size: usize) -> Result<usize> {
    let left = audio.optional_size("attention_context_left")?.unwrap_or(13);
    if left != size + 1 {
        let message = format_args!("is {left}; it must be attention_chunk_size + 1, {}", size + 1);
        return Err(audio.error("attention_context_left", message));
    }
    match audio.optional_number("attention_context_right")? {
        Some(right) if right > 0.0 => {
            Err(audio.error("attention_context_right", format_args!("is {right}; only 0 is supported")))
        }
        _ => Ok(size),
    }
}
