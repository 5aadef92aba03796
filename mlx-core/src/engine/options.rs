//! How an engine runs: what the program that starts it chooses once, for all requests.

use crate::backend::Backend;
use crate::cache::DiskOptions;
use crate::error::Result;
use crate::weights::{FloatPolicy, WeightPolicy};

/// Choices for a whole engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Whether requests that do not say are bit-exact: the same bits whatever runs beside them, where the device allows it.
    pub exact: bool,
    /// Bytes that weights, caches and work may take together. None: a share of the machine's memory.
    pub memory_budget: Option<u64>,
    /// The float type that is computed in. None: what suits the device.
    pub dtype: Option<FloatPolicy>,
    /// Whether quantized weights stay packed where the device would rather have them as floats.
    pub keep_quantized: bool,
    /// Bytes of the beginnings of texts that are kept for later requests; 0 keeps none. What is promised to requests comes first,
    /// whatever is said here. None: a quarter of what requests share.
    pub prefix_cache: Option<u64>,
    /// Where to save such beginnings for later runs of the program, and restore them from. None: nowhere.
    pub prompt_cache: Option<DiskOptions>,
    /// What models are computed with. None: what suits the device.
    pub backend: Option<Backend>,
    /// Keep keys and values in 4 or 8 bits. It saves memory, and answers are no longer those of the model. None: as they are.
    pub kv_bits: Option<u8>,
    /// The most requests that run at once; at least 1.
    pub max_running: usize,
    /// The most requests that may wait for their first turn; at least 1.
    pub max_waiting: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            exact: false,
            memory_budget: None,
            dtype: None,
            keep_quantized: false,
            prefix_cache: None,
            prompt_cache: None,
            backend: None,
            kv_bits: None,
            max_running: 32,
            max_waiting: 256,
        }
    }
}

impl EngineOptions {
    /// For a program that asks one thing after the other.
    pub fn single() -> Self {
        Self { max_running: 1, ..Self::default() }
    }

    /// How weights are held.
    pub fn weights(&self) -> Result<WeightPolicy> {
        Ok(WeightPolicy::new(self.backend()?, self.keep_quantized).with_floats(self.dtype))
    }

    /// What models are computed with.
    pub(super) fn backend(&self) -> Result<Backend> {
        self.backend.map_or_else(Backend::detect, Ok)
    }
}

/// How far results can be repeated. See docs/exactness.md.
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

/// The order in which waiting requests start. Waiting raises a request's rank, so that every request starts at some point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Background work.
    Low,
    /// The priority of requests that set none.
    #[default]
    Normal,
    /// Interactive work.
    High,
}
