//! The options of an engine, which are fixed when it starts.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::drafters::{CustomDrafter, Speculate};
use super::step_monitor::StepMonitor;
use crate::backend::Backend;
use crate::cache::DiskOptions;
use crate::distributed::Workers;
use crate::error::{Error, Result};
use crate::memory_pressure::PressureSource;
use crate::model::ModelSpec;
use crate::variant_names::impl_variant_names;
use crate::weights::{FloatPolicy, WeightPolicy};

/// The options of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "options that do not depend on each other")]
pub struct EngineOptions {
    /// The default for requests that do not set `exact`: results that are bit-identical regardless of concurrent requests, on devices that
    /// support it.
    pub exact: bool,
    /// Bytes for weights, caches and activations together. `None`: a share of the machine's memory.
    pub memory_budget: Option<u64>,
    /// The maximum length of a sequence in tokens, up to the model's context. `None`: the model's context.
    pub context: Option<usize>,
    /// The float type to compute in. `None`: the device's default. It keeps the types of matrices as in the files unless MLX is linked
    /// without our kernels.
    pub dtype: Option<FloatPolicy>,
    /// Keep quantized weights packed even if `dtype` is f32, which would unpack them on a CPU.
    pub keep_quantized: bool,
    /// Bytes of the prefix cache; 0 disables it. Reservations of running requests take precedence. `None`: a quarter of the memory for
    /// requests.
    pub prefix_cache: Option<u64>,
    /// The folder and limits of the prompt cache on disk, which survives restarts. `None`: prefixes are not saved.
    pub prompt_cache: Option<DiskOptions>,
    /// Lets requests reuse the cached data of all clients: prefixes in memory and on disk, prompts in flight, features of pictures, and
    /// recent answers for drafts. Otherwise a request reuses only the data of its own [`Client`](super::Client). Then neither the duration
    /// nor the counts of an answer reveal the text of another client.
    pub share_prefixes: bool,
    /// The code paths of the model. `None`: those of the device.
    #[serde(skip)]
    pub backend: Option<Backend>,
    /// Controls whether a decode step may begin before the tokens of the previous step are drawn.
    pub pipeline: Pipeline,
    /// Quantize keys and values to 4 or 8 bits: less memory, approximate answers. `None`: not quantized.
    pub kv_bits: Option<u8>,
    /// Folders of adapters that requests may use, see [`Engine::with_adapter`](super::Engine::with_adapter). All of them share the weights
    /// of the model.
    pub adapters: Vec<PathBuf>,
    /// The source of drafts for requests that do not set one. Drafts affect only the speed of an answer.
    pub speculate: Speculate,
    /// A small model for drafts, as a folder or a name in the cache. Its vocabulary must be that of the model. `None`: no draft model.
    pub draft_model: Option<PathBuf>,
    /// A custom drafter, used instead of all others.
    #[serde(skip)]
    pub drafter: Option<CustomDrafter>,
    /// Make drafts and verify them regardless of their cost, for tests.
    pub force_drafts: bool,
    /// The maximum number of sequences that run at once; at least 1.
    pub max_running: usize,
    /// The maximum number of requests in the queue, regardless of how many sequences each has; at least 1.
    pub max_waiting: usize,
    /// The source of memory-pressure reports. `None`: the operating system, if it provides them.
    #[serde(skip)]
    pub memory_pressure: Option<PressureSource>,
    /// Other machines that hold some layers of the model, or a shard of each layer. `None`: this machine holds the whole model.
    pub workers: Option<Workers>,
    /// The name of the tool-call format. `None`: detected from the model's chat template.
    pub tool_format: Option<String>,
    /// Receives a report before each step.
    #[serde(skip)]
    pub step_monitor: Option<StepMonitor>,
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
            step_monitor: None,
        }
    }
}

impl EngineOptions {
    /// Returns true if another process can start an engine with these options: they hold no code of this one.
    pub fn is_portable(&self) -> bool {
        self.backend.is_none()
            && self.drafter.is_none()
            && self.memory_pressure.is_none()
            && self.step_monitor.is_none()
    }

    /// Returns options for programs that run one request at a time.
    pub fn single() -> Self {
        Self { max_running: 1, ..Self::default() }
    }

    /// Returns the storage policy for weights on the device.
    pub fn weights(&self) -> Result<WeightPolicy> {
        let backend = self.backend()?;
        if self.dtype == Some(FloatPolicy::Mixed) && !backend.keep_f16_matrices {
            let message = "cannot be mixed: no kernel of this build multiplies f32 by f16 or bf16; use f32, f16, bf16 or checkpoint";
            return Err(Error::option("dtype", message));
        }
        let policy = WeightPolicy::new(backend, self.keep_quantized).with_floats(self.dtype);
        // A CPU computes in f32 anyway. A user who asks for f32 explicitly wants it in memory too.
        let unpacks =
            self.dtype == Some(FloatPolicy::F32) && !backend.keep_float_type && !self.keep_quantized;
        Ok(WeightPolicy { keep_packed: policy.keep_packed && !unpacks, ..policy })
    }

    /// Returns `spec` with its context limited by these options.
    pub(crate) fn bounded(&self, mut spec: ModelSpec) -> ModelSpec {
        spec.context_length =
            self.context.map_or(spec.context_length, |most| most.clamp(1, spec.context_length));
        spec
    }

    /// Returns the backend that models run on.
    pub(super) fn backend(&self) -> Result<Backend> {
        // Called even if its result is not used, since it selects the device.
        let detected = Backend::detect()?;
        let backend = self.backend.unwrap_or(detected);
        Ok(Backend { lookahead: backend.lookahead && self.pipeline == Pipeline::Auto, ..backend })
    }
}

/// Controls whether a decode step may begin before the tokens of the previous step are drawn. It affects only speed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pipeline {
    /// Begin early if the device works in parallel with the host and the tokens can be guessed.
    #[default]
    Auto,
    /// Never begin early.
    Off,
}

impl_variant_names!(Pipeline, |name| format!("{name:?} is neither auto nor off"));

/// The reproducibility of a result. See docs/exactness.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exactness {
    /// Equal logits give equal draws.
    Sampling,
    /// The logits are bit-identical too.
    Bit,
    /// Equal requests give equal answers, but not those of the unmodified model: the context has shifted, or keys and values are quantized.
    Approximate,
}

impl Exactness {
    /// Returns the name for reports and headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sampling => "sampling-exact",
            Self::Bit => "bit-exact",
            Self::Approximate => "approximate",
        }
    }
}
