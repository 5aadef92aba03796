//! The options of an engine: chosen once, when it is started.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::drafters::{CustomDrafter, Speculate};
use crate::backend::Backend;
use crate::cache::DiskOptions;
use crate::distributed::Workers;
use crate::error::{Error, Result};
use crate::memory_pressure::PressureSource;
use crate::model::ModelSpec;
use crate::variant_names::impl_variant_names;
use crate::weights::{FloatPolicy, WeightPolicy};

/// The options of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "options that do not depend on each other")]
pub struct EngineOptions {
    /// The default of requests that do not set `exact`: bit-exact, whatever runs beside them, where the device allows it.
    pub exact: bool,
    /// Bytes for weights, caches and activations together. `None`: a share of the machine's memory.
    pub memory_budget: Option<u64>,
    /// The longest sequence, in tokens, where that is less than the model's context. `None`: the model's context.
    pub context: Option<usize>,
    /// The float type to compute in. `None`: the device's default, which leaves matrices as they are in the files unless MLX is
    /// linked without our kernels.
    pub dtype: Option<FloatPolicy>,
    /// Keep quantized weights packed with `dtype` f32, too, which makes floats of them on a CPU.
    pub keep_quantized: bool,
    /// Bytes of the prefix cache; 0 turns it off. Reservations of running requests take precedence. `None`: a quarter of the memory of
    /// requests.
    pub prefix_cache: Option<u64>,
    /// Where prefixes are saved for later runs of the program. `None`: nowhere.
    pub prompt_cache: Option<DiskOptions>,
    /// Lets requests reuse the cached data of all clients: prefixes in memory and on disk, prompts in flight, features of pictures, and
    /// recent answers for drafts. Otherwise a request reuses only the data of its own [`Client`](super::Client). Then neither the duration nor the counts of
    /// an answer reveal the text of another client.
    pub share_prefixes: bool,
    /// The code paths of the model. `None`: those of the device.
    pub backend: Option<Backend>,
    /// Whether decode steps may begin before the tokens of the ones before are drawn.
    pub pipeline: Pipeline,
    /// Quantize keys and values to 4 or 8 bits: less memory, approximate answers. `None`: not quantized.
    pub kv_bits: Option<u8>,
    /// Folders of adapters that requests may go through, see [`Engine::with_adapter`](super::Engine::with_adapter); the model and all of
    /// them share its weights.
    pub adapters: Vec<PathBuf>,
    /// Where drafts of requests that do not say come from. Drafts change the speed of an answer and nothing else.
    pub speculate: Speculate,
    /// A small model that drafts, as a folder or a name in the cache; its tokens must be those of the model. `None`: no model drafts.
    pub draft_model: Option<PathBuf>,
    /// A drafter of the program's own, in place of all others.
    pub drafter: Option<CustomDrafter>,
    /// Make drafts and verify them whatever they cost, for tests.
    pub force_drafts: bool,
    /// The most sequences that run at once; at least 1.
    pub max_running: usize,
    /// The most requests in the queue, however many sequences each has; at least 1.
    pub max_waiting: usize,
    /// Where the engine asks whether the system is short of memory. `None`: the system, where it says.
    pub memory_pressure: Option<PressureSource>,
    /// Other machines that hold some layers of the model, or a part of each. `None`: this one holds all of it.
    pub workers: Option<Workers>,
    /// The format of calls of tools, by its name. `None`: the one that the model's chat template shows.
    pub tool_format: Option<String>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            exact: false,
            memory_budget: None,
            context: None,
            dtype: None,
            keep_quantized: false,
            prefix_cache: None,
            prompt_cache: None,
            share_prefixes: true,
            backend: None,
            pipeline: Pipeline::Auto,
            kv_bits: None,
            adapters: Vec::new(),
            speculate: Speculate::Auto,
            draft_model: None,
            drafter: None,
            force_drafts: false,
            max_running: 32,
            max_waiting: 256,
            memory_pressure: None,
            workers: None,
            tool_format: None,
        }
    }
}

impl EngineOptions {
    /// For programs that run one request at a time.
    pub fn single() -> Self {
        Self { max_running: 1, ..Self::default() }
    }

    /// How weights are stored on the device.
    pub fn weights(&self) -> Result<WeightPolicy> {
        let backend = self.backend()?;
        if self.dtype == Some(FloatPolicy::Mixed) && !backend.keeps_halves {
            let message = "cannot be mixed: nothing here multiplies f32 with halves; f32, f16, bf16 and checkpoint are possible";
            return Err(Error::option("dtype", message));
        }
        let policy = WeightPolicy::new(backend, self.keep_quantized).with_floats(self.dtype);
        // Who asks for the type in which a CPU computes anyway asks for it in memory, too.
        let unpacks = self.dtype == Some(FloatPolicy::F32) && !backend.keeps_floats && !self.keep_quantized;
        Ok(WeightPolicy { keep_packed: policy.keep_packed && !unpacks, ..policy })
    }

    /// What is known about a model, with the context of these options.
    pub(crate) fn bounded(&self, mut spec: ModelSpec) -> ModelSpec {
        spec.context_length =
            self.context.map_or(spec.context_length, |most| most.clamp(1, spec.context_length));
        spec
    }

    /// What models are computed with.
    pub(super) fn backend(&self) -> Result<Backend> {
        // Called even if its result is not used, since it selects the device.
        let detected = Backend::detect()?;
        let backend = self.backend.unwrap_or(detected);
        Ok(Backend { runs_ahead: backend.runs_ahead && self.pipeline == Pipeline::Auto, ..backend })
    }
}

/// Whether decode steps may begin before the tokens of the ones before are drawn. It changes speed and nothing else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pipeline {
    /// Where the device works beside the host and the tokens can be guessed.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl_variant_names!(Pipeline, |name| format!("{name:?} is neither auto nor off"));

/// How reproducible a result is. See docs/exactness.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exactness {
    /// The same logits give the same draw.
    Sampling,
    /// The logits are the same bits, too.
    Bit,
    /// The same request gives the same answer, but not the whole model's: the text has outgrown the context and slid, or keys and
    /// values are kept in few bits.
    Approximate,
}

impl Exactness {
    /// The name in reports and headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sampling => "sampling-exact",
            Self::Bit => "bit-exact",
            Self::Approximate => "approximate",
        }
    }
}
