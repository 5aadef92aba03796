//! Models: weights that turn tokens into logits. Invariant: nothing here knows of sampling, text or requests.

mod attention;
mod batch;
mod block;
mod decoder;
pub mod family;
mod feed_forward;
mod footprint;
mod linear;
mod norm;
pub mod rope;

use std::path::Path;

use mlx_rs::{Array, Dtype};

pub use attention::AttentionConfig;
pub use batch::{Batch, Pass, Row};
pub use decoder::DecoderConfig;
pub use feed_forward::FeedForwardConfig;
pub use footprint::Footprint;

use crate::array::FloatPolicy;
use crate::cache::SequenceCache;
use crate::config::Fields;
use crate::error::Result;
use crate::weights::{Progress, Weights};

/// A loaded model. Its weights never change.
pub trait Model: Send {
    /// What the model is.
    fn spec(&self) -> &ModelSpec;

    /// An empty cache for one sequence.
    fn new_cache(&self) -> SequenceCache;

    /// Begins a pass over `batch`.
    fn begin(&self, batch: Batch) -> Result<Pass>;

    /// Issues the next `layers` layers of a pass, or as many as are left, extending the caches of its sequences by the rows it
    /// brings. Nothing is computed before somebody asks for it. Row `i` depends on its own sequence alone.
    fn advance(&self, pass: &mut Pass, layers: usize, caches: &mut [&mut SequenceCache]) -> Result<()>;

    /// A whole pass: the rows' last hidden state `[rows, width]`.
    fn forward(&self, batch: Batch, caches: &mut [&mut SequenceCache]) -> Result<Array> {
        let mut pass = self.begin(batch)?;
        self.advance(&mut pass, self.spec().layers, caches)?;
        Ok(pass.hidden)
    }

    /// Some rows of [`Model::forward`] after the last norm: what the head, or a pooled embedding, is made from.
    fn normalised(&self, hidden: &Array) -> Result<Array>;

    /// The logits `[rows, vocabulary]` of some rows of [`Model::forward`], unevaluated.
    fn logits(&self, hidden: &Array) -> Result<Array>;
}

/// What there is to know about a loaded model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSpec {
    /// `model_type` of config.json.
    pub family: String,
    /// The number of token ids; logits have this width.
    pub vocabulary: usize,
    /// The longest sequence the model was trained for, in tokens.
    pub context: usize,
    /// The number of layers.
    pub layers: usize,
    /// The width of the residual stream, and of embeddings.
    pub hidden: usize,
    /// The float type that the model computes in: `f32`, `f16` or `bf16`.
    pub dtype: &'static str,
    /// Parameters read from the files.
    pub parameters: u64,
    /// Bytes of those parameters on the device.
    pub weight_bytes: u64,
    /// Bytes of those parameters in the files.
    pub file_bytes: u64,
    /// What sequences and passes take.
    pub footprint: Footprint,
}

impl ModelSpec {
    fn new(family: &str, config: &DecoderConfig, weights: &Weights) -> Self {
        let (dtype, size) = match weights.dtype() {
            Dtype::Float16 => ("f16", 2),
            Dtype::Bfloat16 => ("bf16", 2),
            _ => ("f32", 4),
        };
        Self {
            family: family.to_owned(),
            vocabulary: config.vocabulary,
            context: config.context,
            layers: config.layers,
            hidden: config.hidden,
            dtype,
            parameters: weights.parameters(),
            weight_bytes: weights.parameters() * size,
            file_bytes: weights.file_bytes(),
            footprint: Footprint::new(config, size),
        }
    }
}

/// Loads the model in `folder`, a Hugging Face folder with `config.json` and safetensors.
pub fn load(folder: &Path, policy: FloatPolicy, progress: Progress) -> Result<Box<dyn Model>> {
    let fields = Fields::read(&folder.join("config.json"))?;
    let (family, config) = family::read(&fields)?;
    let weights = Weights::open(folder, policy, progress)?;
    let decoder = decoder::Decoder::load(&family, &config, weights)?;
    log_widening(decoder.spec());
    Ok(Box::new(decoder))
}

fn log_widening(spec: &ModelSpec) {
    if spec.weight_bytes > spec.file_bytes {
        tracing::info!(
            file_mb = spec.file_bytes >> 20,
            memory_mb = spec.weight_bytes >> 20,
            "weights become f32 on this backend, where half precision has no fast kernels"
        );
    }
}
