//! The flags that name a model and say how it runs, shared by all commands that load one.

use std::path::PathBuf;

use clap::Args;
use mlx_core::engine::EngineOptions;
use mlx_core::hub;
use mlx_guide as guide;
use mlx_options::{CacheArgs, ExactArgs, KvCacheArgs, LoadArgs, PrefixCacheArgs};

use crate::exit_code::Failure;

#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// The model: a name that `mlx list` shows, or a folder with config.json, safetensors and tokenizer.json
    #[arg(short, long, value_name = "MODEL", env = "MLX_MODEL")]
    pub(crate) model: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) exact: ExactArgs,

    #[command(flatten)]
    pub(crate) load: LoadArgs,

    /// Say what happens: timings, memory, notes of the loader (on standard error)
    #[arg(short, long)]
    pub(crate) verbose: bool,

    #[command(flatten, next_help_heading = "Cache")]
    pub(crate) kv_cache: KvCacheArgs,
}

impl ModelArgs {
    /// The folder of the model.
    pub(crate) fn folder(&self) -> Result<PathBuf, Failure> {
        let missing =
            || Failure::usage("-m", "is missing; it names a model (`mlx chat` alone talks with the guide)");
        Ok(hub::resolve(self.model.as_deref().ok_or_else(missing)?)?)
    }

    /// The same, or that of the built-in model if none is named.
    pub(crate) fn folder_or_guide(&self) -> Result<PathBuf, Failure> {
        if self.model.is_some() { self.folder() } else { Ok(guide::folder()?) }
    }

    /// The options of an engine that runs one request at a time.
    pub(crate) fn engine_options(&self, prefix_cache: &PrefixCacheArgs) -> Result<EngineOptions, Failure> {
        let cache = CacheArgs { prefix: prefix_cache.clone(), kv: self.kv_cache };
        cache.check().map_err(|(flag, why)| Failure::usage(flag, why))?;
        let mut options = EngineOptions::single();
        self.exact.apply(&mut options);
        self.load.apply(&mut options);
        cache.apply(&mut options);
        Ok(options)
    }
}
