//! The bytes that sequences and passes take on the device, computed only from the shape of the model.

use serde::{Deserialize, Serialize};

use super::attention::AttentionConfig;
use super::attention_work::AttentionWork;
use super::config::{DecoderConfig, LayerConfig};
use super::mixer::MixerKind;
use super::moe::MoeConfig;
use crate::backend::AttentionKernels;
use crate::cache;

/// The most rows in a pass. A slice of hidden states can keep all of them in memory.
const LONGEST_PASS: usize = 512;

/// The memory of a model as a function of tokens, rows and positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Bytes of a sequence's state that do not depend on its length: recurrent layers. A checkpoint of these layers takes as much.
    pub fixed: u64,
    /// Bytes that one more token takes in the state of a sequence, in a separate buffer or in a slot of a pool.
    pub per_token: u64,
    /// Bytes of one row of a pass: the widest activations that exist at the same time.
    pub bytes_per_row: u64,
    /// Bytes of one row of logits, on the device and as f32.
    pub logits_per_row: u64,
    /// The memory of attention in a pass.
    pub attention: AttentionWork,
    /// The share of the largest layer in `fixed`.
    largest_fixed: u64,
    /// The share of layers with a sliding window in `per_token`.
    sliding_per_token: u64,
    /// The share of the largest layer in `per_token`.
    layer_per_token: u64,
    window: Option<usize>,
    /// Bytes of a number in the model's type.
    size: u64,
    /// True if keys and values can be quantized. Latents cannot.
    quantizable: bool,
    /// Bytes per token that one layer takes temporarily to dequantize keys and values.
    unpacked_per_token: u64,
}

impl Footprint {
    /// Computes the footprint for activations of `size` bytes and for the attention kernels of a device.
    pub(crate) fn new(config: &DecoderConfig, size: u64, kernels: AttentionKernels) -> Self {
        let attending = || {
            let key_width =
                |attention: &AttentionConfig| 2 * (attention.num_kv_heads * attention.head_dim) as u64;
            let layers =
                config.layers.iter().filter_map(move |layer| Some((layer, config.attention_of(layer)?)));
            layers.map(move |(layer, attention)| (layer, attention, key_width(attention) * size))
        };
        // Bytes of a latent, which keys and values are computed from.
        let latent = |layer: &LayerConfig| match layer.mixer {
            MixerKind::Latent(latent) => latent.latent_width() as u64 * size,
            _ => 0,
        };
        let latents: u64 = config.layers.iter().map(latent).sum();
        // Borrowed keys and values are counted only in the layer that owns them.
        let keeping = || attending().filter(|(layer, ..)| layer.kv_source.is_none());
        let sliding = keeping().filter(|(layer, ..)| layer.sliding_window.is_some());
        let fixed = |layer: &LayerConfig| layer.mixer.fixed_bytes(size as usize) as u64;
        Self {
            fixed: config.layers.iter().map(fixed).sum(),
            largest_fixed: config.layers.iter().map(fixed).max().unwrap_or(0),
            per_token: keeping().map(|it| it.2).sum::<u64>() + latents,
            bytes_per_row: bytes_per_row(config, size),
            logits_per_row: config.vocab_size as u64 * (size + 4),
            attention: AttentionWork::new(config, size, kernels),
            sliding_per_token: sliding.map(|it| it.2).sum(),
            layer_per_token: attending()
                .map(|it| it.2)
                .chain(config.layers.iter().map(latent))
                .max()
                .unwrap_or(0),
            quantizable: latents == 0,
            window: config.layers.iter().filter_map(|layer| layer.sliding_window).max(),
            size,
            unpacked_per_token: 0,
        }
    }

    /// Returns the bytes of the state of a sequence of `tokens` tokens, computed in passes of up to `run` tokens. They include the two layers
    /// that are copied when the state grows.
    pub fn state(&self, tokens: usize, run: usize) -> u64 {
        let full_per_token = self.per_token - self.sliding_per_token;
        let all = cache::layer_capacity(None, tokens, run) as u64;
        let recent = cache::layer_capacity(self.window, tokens, run) as u64;
        let longest = if full_per_token > 0 { all } else { recent };
        let read = (2 * self.layer_per_token + self.unpacked_per_token) * longest;
        // A recurrent layer holds its present and its next state at the same time. A few layers are in progress at once.
        let replaced = self.fixed.min(4 * self.largest_fixed);
        self.fixed + replaced + full_per_token * all + self.sliding_per_token * recent + read
    }

    /// Returns the maximum bytes of a checkpoint of a state: its recurrent layers, and the positions that the next row sees in layers with a
    /// window.
    pub fn checkpoint(&self) -> u64 {
        let window = self.window.map_or(0, |window| cache::layer_capacity(Some(window), window, 1));
        self.fixed + self.sliding_per_token * window as u64
    }

    /// Returns the footprint with KV caches of `bits` bits per number. Layers with a window are not quantized. `None` if all layers have a
    /// window, or if the width of a layer is not a multiple of the group size.
    pub fn in_bits(self, bits: u8) -> Option<Self> {
        let full_per_token = self.per_token - self.sliding_per_token;
        let (numbers, group) = (full_per_token / self.size, cache::GROUP as u64);
        let even =
            self.quantizable && numbers > 0 && (self.layer_per_token / self.size).is_multiple_of(group);
        let packed = numbers * u64::from(bits) / 8 + numbers / group * 2 * self.size;
        // The dequantized numbers, which MLX's CPU backend writes as 32-bit words for any type, and their copy in the order that
        // attention reads.
        let unpacked_per_token = 8 * self.layer_per_token / self.size;
        even.then_some(Self { per_token: packed + self.sliding_per_token, unpacked_per_token, ..self })
    }

    /// Returns a footprint for two parts of a model on separate machines: the larger of each figure.
    pub(crate) fn max(self, other: Self) -> Self {
        let full = |it: &Self| it.per_token - it.sliding_per_token;
        let sliding_per_token = self.sliding_per_token.max(other.sliding_per_token);
        Self {
            fixed: self.fixed.max(other.fixed),
            per_token: full(&self).max(full(&other)) + sliding_per_token,
            bytes_per_row: self.bytes_per_row.max(other.bytes_per_row),
            logits_per_row: self.logits_per_row.max(other.logits_per_row),
            attention: self.attention.or(other.attention),
            largest_fixed: self.largest_fixed.max(other.largest_fixed),
            sliding_per_token,
            layer_per_token: self.layer_per_token.max(other.layer_per_token),
            window: self.window.max(other.window),
            size: self.size.max(other.size),
            quantizable: self.quantizable && other.quantizable,
            unpacked_per_token: self.unpacked_per_token.max(other.unpacked_per_token),
        }
    }

    /// Adds the changes of an adapter, in up to f32, to the output of every projection.
    pub(crate) fn adapted(self) -> Self {
        Self { bytes_per_row: self.bytes_per_row + self.bytes_per_row * 4 / self.size, ..self }
    }

    /// Adds the memory to send hidden states of width `hidden` to another machine and back: the sent message, the receive buffer, which grows
    /// to twice the size of its data, and the message made of it.
    pub(crate) fn with_transfer(self, hidden: usize) -> Self {
        let crossing = 4 * hidden as u64 * self.size;
        Self { bytes_per_row: self.bytes_per_row + crossing, ..self }
    }

    /// Adds the memory to sum hidden states of width `hidden` over `ranks` machines: those of the pass, the summands of all ranks, one
    /// summand and the sum in f32, and the sum in the model's type.
    pub(crate) fn with_all_reduce(self, hidden: usize, ranks: usize) -> Self {
        let per_number = (ranks + 2) as u64 * self.size + 8;
        Self { bytes_per_row: self.bytes_per_row + hidden as u64 * per_number, ..self }
    }

    /// Adds the memory of an MTP head, which reads hidden states of width `hidden` of up to `rows` positions. They are slices of another
    /// model's passes, which stay in memory as long as their slices.
    pub(super) fn with_mtp_history(self, hidden: usize, rows: usize) -> Self {
        let kept = (rows + LONGEST_PASS) as u64 * hidden as u64 * self.size;
        let row = 4 * hidden as u64 * self.size;
        Self { fixed: self.fixed + kept, bytes_per_row: self.bytes_per_row + row, ..self }
    }

    /// Returns the bytes that a pass over `rows` rows takes in addition to the caches and to [`AttentionWork`].
    pub fn pass(&self, rows: usize) -> u64 {
        rows as u64 * self.bytes_per_row
    }
}

/// Returns the bytes of the widest activations of a row that exist at the same time.
fn bytes_per_row(config: &DecoderConfig, size: u64) -> u64 {
    let attention = |attention: &AttentionConfig| {
        let keys = 2 * attention.num_kv_heads * attention.head_dim;
        let queries = attention.num_heads * attention.head_dim;
        let copies = if attention.norm.is_some() { 5 } else { 3 };
        copies * (queries + keys) + if attention.output_gate.is_some() { 3 * queries } else { 0 }
    };
    let mixer = |layer: &LayerConfig| match layer.mixer {
        MixerKind::Attention => config.attention_of(layer).map_or(0, attention) as u64 * size,
        MixerKind::Latent(latent) => latent.numbers_per_row() as u64 * size,
        MixerKind::ShortConv(conv) => 12 * conv.channels as u64 * size.max(4),
        MixerKind::GatedDelta(delta) => delta.bytes_per_row() as u64,
        MixerKind::KimiDelta(delta) => delta.bytes_per_row() as u64,
        MixerKind::Mamba2(mamba) => mamba.bytes_per_row() as u64,
        MixerKind::BesideMamba2(both) => {
            both.mamba.bytes_per_row() as u64
                + config.attention_of(layer).map_or(0, attention) as u64 * size
                + 3 * config.hidden_size as u64 * size
        }
        MixerKind::None => 0,
    };
    let sparse = |experts: &MoeConfig| {
        let shared = experts.shared.map_or(0, |shared| 5 * shared.intermediate_size + config.hidden_size);
        experts.num_experts_per_tok * (5 * experts.intermediate_size + 2 * config.hidden_size)
            + 4 * experts.num_experts
            + shared
    };
    let widths = config.layers.iter().filter_map(|layer| layer.intermediate_size);
    let dense = 5 * widths.fold(config.feed_forward.intermediate_size, usize::max);
    let inner = match &config.experts {
        Some(experts) if experts.beside_dense => dense + sparse(experts),
        experts => dense.max(experts.as_ref().map_or(0, sparse)),
    };
    let per_layer = config.per_layer_input.map_or(0, |input| 4 * config.layers.len() * input.hidden_size);
    let widest = config.layers.iter().map(mixer).max().unwrap_or(0);
    // The streams before and after a layer, their prediction and its correction.
    let streams = config.altup.map_or(0, |altup| 6 * altup.altup_num_inputs * config.hidden_size);
    // The gates, their differences from the mean, and the squares of these.
    let sparse =
        if config.layers.iter().any(|layer| layer.activation_sparsity.is_some()) { dense } else { 0 };
    (4 * config.hidden_size + inner + per_layer + streams + sparse) as u64 * size + widest
}
