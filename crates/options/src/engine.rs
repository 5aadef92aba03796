//! Engine flags. Each struct is declared once: clap reads it from flags and variables, serde from a config file.

use std::path::PathBuf;

use clap::Args;
use mlx_core::engine::{EngineOptions, Pipeline, Speculate};
use mlx_core::weights::FloatPolicy;
use serde::{Deserialize, Serialize};

use crate::device::DeviceArgs;
use crate::human_units::ByteSize;
use crate::workers::WorkersArgs;

/// All engine flags, as the server takes them.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineArgs {
    /// The device, for the whole process.
    #[command(flatten)]
    #[serde(flatten)]
    pub device: DeviceArgs,
    /// Exactness of results.
    #[command(flatten)]
    #[serde(flatten)]
    pub exact: ExactArgs,
    /// Sources of drafts.
    #[command(flatten)]
    #[serde(flatten)]
    pub speculate: SpeculateArgs,
    /// Loading of the model.
    #[command(flatten)]
    #[serde(flatten)]
    pub load: LoadArgs,
    /// Other machines that hold layers of the model.
    #[command(flatten)]
    #[serde(flatten)]
    pub workers: WorkersArgs,
    /// Limits on running and waiting requests.
    #[command(flatten)]
    #[serde(flatten)]
    pub queue: QueueArgs,
    /// Format of tool calls, instead of the one detected in the chat template; an unknown name lists all formats
    #[arg(long, value_name = "NAME", env = "MLX_TOOL_FORMAT")]
    #[serde(rename = "tool-format")]
    pub tool_format: Option<String>,
}

/// The flag for bit-exact results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ExactArgs {
    /// Give bit-identical results whatever other requests run in the batch, where the device allows it [default: false]
    #[arg(long, env = "MLX_EXACT", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub exact: Option<bool>,
}

/// Flags for speculative decoding.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct SpeculateArgs {
    /// Draft the next tokens and verify several in one pass when that is faster; answers do not change. SOURCE is auto,
    /// off, lookup (matches in the sequence itself), suffix (also in recent answers), draft (the draft model) or mtp
    /// (the checkpoint's own multi-token-prediction head) [default: auto]
    #[arg(long, env = "MLX_SPECULATE", value_name = "SOURCE")]
    pub speculate: Option<Speculate>,

    /// Smaller model of the same family to draft with, as a name or a folder; auto uses it along with the other sources
    #[arg(long, env = "MLX_DRAFT_MODEL", value_name = "MODEL")]
    pub draft_model: Option<PathBuf>,
}

/// Flags for loading and running a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct LoadArgs {
    /// Memory for the weights, caches and activations of a model, such as 8GB [default: a share of the machine's
    /// memory]
    #[arg(long, value_name = "SIZE", env = "MLX_MEMORY_BUDGET")]
    pub memory_budget: Option<ByteSize>,

    /// Maximum sequence length in tokens; less than the model's context length saves memory [default: the model's]
    #[arg(short, long, value_name = "N", env = "MLX_CTX_SIZE")]
    pub ctx_size: Option<usize>,

    /// Float type to compute in: f32, f16, bf16, checkpoint (the type of the files) or mixed (f32, with matrices in the
    /// type of the files). On a CPU, f16 and bf16 are slow, and f32 dequantizes weights [default: checkpoint on a GPU,
    /// mixed on a CPU]
    #[arg(long, value_name = "TYPE", env = "MLX_DTYPE")]
    pub dtype: Option<FloatPolicy>,

    /// Start a decode step on the GPU before the tokens of the previous step are sampled: auto (when they can be
    /// predicted) or off; answers do not change [default: auto]
    #[arg(long, value_name = "WHEN", env = "MLX_PIPELINE")]
    pub pipeline: Option<Pipeline>,

    /// Keep quantized weights packed on a CPU with --dtype f32 too; with other types they always stay packed [default:
    /// false]
    #[arg(long, value_name = "BOOL", env = "MLX_KEEP_QUANTIZED", num_args = 0..=1, default_missing_value = "true")]
    pub keep_quantized: Option<bool>,
}

/// Limits on the requests of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct QueueArgs {
    /// Maximum concurrent choices and texts of a model [default: 32]
    #[arg(long, value_name = "N", env = "MLX_MAX_RUNNING")]
    pub max_running: Option<usize>,

    /// Maximum waiting requests of a model, however many choices each has; further requests are rejected with a
    /// Retry-After time [default: 256]
    #[arg(long, value_name = "N", env = "MLX_MAX_WAITING")]
    pub max_waiting: Option<usize>,
}

impl EngineArgs {
    /// Fills in the engine's defaults for flags that were not given.
    #[must_use]
    pub fn or_default(mut self) -> Self {
        let default = EngineOptions::default();
        self.exact.exact.get_or_insert(default.exact);
        self.speculate.speculate.get_or_insert(default.speculate);
        self.load.pipeline.get_or_insert(default.pipeline);
        self.load.keep_quantized.get_or_insert(default.keep_quantized);
        self.queue.max_running.get_or_insert(default.max_running);
        self.queue.max_waiting.get_or_insert(default.max_waiting);
        self
    }

    /// Sets the given values in the options of an engine, except the device and the workers. A process
    /// [chooses](DeviceArgs::choose) the device, and the workers are [read](WorkersArgs::read) from files.
    pub fn apply(&self, options: &mut EngineOptions) {
        self.exact.apply(options);
        self.speculate.apply(options);
        self.load.apply(options);
        self.queue.apply(options);
        options.tool_format = self.tool_format.clone().or(options.tool_format.take());
    }
}

impl ExactArgs {
    /// Copies the given values into the options of an engine.
    pub fn apply(self, options: &mut EngineOptions) {
        options.exact = self.exact.unwrap_or(options.exact);
    }
}

impl SpeculateArgs {
    /// Copies the given values into the options of an engine.
    pub fn apply(&self, options: &mut EngineOptions) {
        options.speculate = self.speculate.unwrap_or(options.speculate);
        options.draft_model = self.draft_model.clone().or(options.draft_model.take());
    }
}

impl LoadArgs {
    /// Copies the given values into the options of an engine.
    pub fn apply(self, options: &mut EngineOptions) {
        let Self { memory_budget, ctx_size, dtype, pipeline, keep_quantized } = self;
        options.pipeline = pipeline.unwrap_or(options.pipeline);
        options.context = ctx_size.or(options.context);
        options.memory_budget = memory_budget.map(|size| size.0).or(options.memory_budget);
        options.dtype = dtype.or(options.dtype);
        options.keep_quantized = keep_quantized.unwrap_or(options.keep_quantized);
    }
}

impl QueueArgs {
    /// Copies the given values into the options of an engine.
    pub fn apply(self, options: &mut EngineOptions) {
        options.max_running = self.max_running.unwrap_or(options.max_running);
        options.max_waiting = self.max_waiting.unwrap_or(options.max_waiting);
    }

    /// Checks the values. An error contains the flag and the problem with its value.
    pub fn check(self) -> Result<(), (&'static str, &'static str)> {
        if self.max_running == Some(0) {
            return Err(("--max-running", "is 0; at least one request must run"));
        }
        if self.max_waiting == Some(0) {
            return Err((
                "--max-waiting",
                "is 0; every request waits before it runs, so at least one must be allowed",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mlx_core::backend::DeviceKind;

    use super::*;

    #[test]
    fn a_file_has_the_names_of_the_flags_and_no_others() {
        let text = "device = 'cpu'\nexact = true\nspeculate = 'lookup'\nmemory-budget = '8GB'\nctx-size = 512\ndtype = 'bf16'\nkeep-quantized = true\nmax-running = 4\nmax-waiting = 5\ntool-format = 'hermes'";
        let args: EngineArgs = toml::from_str(text).expect("every flag");
        assert_eq!(args.device.device, Some(DeviceKind::Cpu));
        let mut options = EngineOptions::default();
        args.apply(&mut options);
        let expected = EngineOptions {
            exact: true,
            speculate: Speculate::Lookup,
            memory_budget: Some(8_000_000_000),
            context: Some(512),
            dtype: Some(FloatPolicy::Bf16),
            keep_quantized: true,
            max_running: 4,
            max_waiting: 5,
            tool_format: Some("hermes".into()),
            ..EngineOptions::default()
        };
        assert_eq!(options, expected);
        let wrong = toml::from_str::<EngineArgs>("max-runing = 4").expect_err("a typing error");
        assert!(wrong.message().contains("max-runing"), "{wrong}");
    }

    #[test]
    fn what_is_not_given_is_left_as_it_is() {
        let mut options = EngineOptions::single();
        EngineArgs::default().apply(&mut options);
        assert_eq!(options, EngineOptions::single());
    }
}
