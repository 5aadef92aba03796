//! Bytes that sequences and passes take on the device, from the shape of the model alone.

use super::attention::AttentionConfig;
use super::attention_work::AttentionWork;
use super::config::{DecoderConfig, LayerConfig};
use super::mixer::MixerKind;
use super::moe::MoeConfig;
use crate::backend::AttentionKernels;
use crate::cache;

/// The most rows of a pass, of which a part may be kept.
const LONGEST_PASS: usize = 512;

/// How memory grows with tokens, rows and positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of a sequence's state at any length, as recurrent layers take; also those of a checkpoint of them.
    pub fixed: u64,
    /// Bytes that one more token takes in the state of a sequence, in a buffer of its own or in a slot of a pool.
    pub per_token: u64,
    /// Bytes of one row of a pass: the widest activations that are alive at once.
    pub bytes_per_row: u64,
    /// Bytes of one row of logits, on the device and as f32.
    pub logits_per_row: u64,
    /// The memory of attention in a pass.
    pub attention: AttentionWork,
    /// The largest layer's part of `fixed`.
    largest_fixed: u64,
    /// Of `per_token`, what layers with a sliding window take.
    sliding_per_token: u64,
    /// What one layer takes of it.
    layer_per_token: u64,
    window: Option<usize>,
    /// Bytes of a number in the model's type.
    size: u64,
    /// Whether keys and values can be quantized: latents cannot.
    quantizable: bool,
    /// Bytes that one token of one layer takes while quantized keys and values are read.
    unpacked_per_token: u64,
}

impl Footprint {
    /// For activations of `size` bytes on a device with these kernels.
    pub(crate) fn new(config: &DecoderConfig, size: u64, kernels: AttentionKernels) -> Self {
        let attending = || {
            let key_width =
                |attention: &AttentionConfig| 2 * (attention.num_kv_heads * attention.head_dim) as u64;
            let layers =
                config.layers.iter().filter_map(move |layer| Some((layer, config.attention_of(layer)?)));
            layers.map(move |(layer, attention)| (layer, attention, key_width(attention) * size))
        };
        // Keys and values are made of it.
        let latent = |layer: &LayerConfig| match layer.mixer {
            MixerKind::Latent(latent) => latent.latent_width() as u64 * size,
            _ => 0,
        };
        let latents: u64 = config.layers.iter().map(latent).sum();
        // Keys and values that a layer borrows are counted where they are.
        let keeping = || attending().filter(|(layer, ..)| layer.kv_source.is_none());
        let sliding = keeping().filter(|(layer, ..)| layer.sliding_window.is_some());
        let fixed = |layer: &LayerConfig| layer.mixer.fixed_bytes(config.hidden_size, size as usize) as u64;
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

    /// Bytes of the state of a sequence of `tokens` tokens that come in passes of up to `run`, with the two layers that are being
    /// copied when it grows.
    pub fn state(&self, tokens: usize, run: usize) -> u64 {
        let full_per_token = self.per_token - self.sliding_per_token;
        let all = cache::layer_capacity(None, tokens, run) as u64;
        let recent = cache::layer_capacity(self.window, tokens, run) as u64;
        let longest = if full_per_token > 0 { all } else { recent };
        let read = (2 * self.layer_per_token + self.unpacked_per_token) * longest;
        // A recurrent layer's next state is computed beside the present one; a few layers are at work at once.
        let replaced = self.fixed.min(4 * self.largest_fixed);
        self.fixed + replaced + full_per_token * all + self.sliding_per_token * recent + read
    }

    /// Bytes of a checkpoint of a state at most: its recurrent layers, and what the next row sees of layers with a window.
    pub fn checkpoint(&self) -> u64 {
        let window = self.window.map_or(0, |window| cache::layer_capacity(Some(window), window, 1));
        self.fixed + self.sliding_per_token * window as u64
    }

    /// The same model with caches that keep every position in so many bits; those of layers with a window stay as they are. None if there
    /// are only such, or groups of numbers do not come out even.
    pub fn in_bits(self, bits: u8) -> Option<Self> {
        let full_per_token = self.per_token - self.sliding_per_token;
        let (numbers, group) = (full_per_token / self.size, cache::GROUP as u64);
        let even =
            self.quantizable && numbers > 0 && (self.layer_per_token / self.size).is_multiple_of(group);
        let packed = numbers * u64::from(bits) / 8 + numbers / group * 2 * self.size;
        // As they come out of their packing, which MLX's CPU does in words of 32 bits whatever the type, and in the order that
        // attention reads them.
        let unpacked_per_token = 8 * self.layer_per_token / self.size;
        even.then_some(Self { per_token: packed + self.sliding_per_token, unpacked_per_token, ..self })
    }

    /// Returns a footprint for two parts of a model on separate machines: the larger of each figure.
    pub(crate) fn or(self, other: Self) -> Self {
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

    /// The same with changes of an adapter, up to f32, beside the output of every projection.
    pub(super) fn adapted(self) -> Self {
        Self { bytes_per_row: self.bytes_per_row + self.bytes_per_row * 4 / self.size, ..self }
    }

    /// The same where hidden states of this width are sent to another machine and come back: those that were sent, what is read from the
    /// connection, which grows to twice of it, and the message that is made of that.
    pub(crate) fn sent_on(self, hidden: usize) -> Self {
        let crossing = 4 * hidden as u64 * self.size;
        Self { bytes_per_row: self.bytes_per_row + crossing, ..self }
    }

    /// The same where hidden states of this width of so many machines are added up: those of the pass that were sent, the parts of all, and
    /// their sum in f32 and in the model's type.
    pub(crate) fn adding_up(self, hidden: usize, ranks: usize) -> Self {
        let per_number = (ranks + 2) as u64 * self.size + 4;
        Self { bytes_per_row: self.bytes_per_row + hidden as u64 * per_number, ..self }
    }

    /// The same for a head that reads the hidden states, of this width, of up to `rows` positions that another model computed: they lie in
    /// the rows of its passes.
    pub(super) fn with_mtp_history(self, hidden: usize, rows: usize) -> Self {
        let kept = (rows + LONGEST_PASS) as u64 * hidden as u64 * self.size;
        let row = 4 * hidden as u64 * self.size;
        Self { fixed: self.fixed + kept, bytes_per_row: self.bytes_per_row + row, ..self }
    }

    /// Bytes that one pass over `rows` rows takes beside the caches and [`AttentionWork`].
    pub fn pass(&self, rows: usize) -> u64 {
        rows as u64 * self.bytes_per_row
    }
}

/// Bytes of the widest activations of a row that are alive at once.
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
        MixerKind::ShortConv(_) => 12 * config.hidden_size as u64 * size.max(4),
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
    (4 * config.hidden_size + inner + per_layer) as u64 * size + widest
}
