//! The flags that name a model and say how it runs, shared by all commands that load one.

use std::path::{Path, PathBuf};

use clap::Args;
use mlx_core::engine::{Engine, EngineOptions};
use mlx_core::hub;
use mlx_guide as guide;
use mlx_options::{CacheArgs, ExactArgs, KvCacheArgs, LoadArgs, PrefixCacheArgs};

use crate::exit_code::Failure;
use crate::terminal;

#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// The model: a name that `mlx list` shows, or a folder with config.json, safetensors and tokenizer.json
    #[arg(short, long, value_name = "MODEL", env = "MLX_MODEL")]
    pub(crate) model: Option<PathBuf>,

    /// An adapter of that model: a folder with adapter_config.json, as mlx-lm or PEFT writes it
    #[arg(long, value_name = "FOLDER")]
    pub(crate) adapter: Option<PathBuf>,

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

    /// Starts an engine on the model, for requests through the adapter if there is one.
    pub(crate) fn start(&self, options: &EngineOptions) -> Result<Engine, Failure> {
        self.adapted(Engine::start(&self.folder()?, options, terminal::load_bar())?)
    }

    /// The handle of an engine for requests through the adapter, if there is one.
    pub(crate) fn adapted(&self, engine: Engine) -> Result<Engine, Failure> {
        Ok(if self.adapter.is_some() { engine.with_adapter(0)? } else { engine })
    }

    /// The options of an engine that runs one request at a time.
    pub(crate) fn engine_options(&self, prefix_cache: &PrefixCacheArgs) -> Result<EngineOptions, Failure> {
        let cache = CacheArgs { prefix: prefix_cache.clone(), kv: self.kv_cache };
        cache.check().map_err(|(flag, why)| Failure::usage(flag, why))?;
        let mut options = EngineOptions::single();
        self.exact.apply(&mut options);
        self.load.apply(&mut options);
        cache.apply(&mut options);
        options.adapters = adapters(self.adapter.as_deref())?;
        Ok(options)
    }
}

/// The folders of the adapter that was given.
pub(crate) fn adapters(given: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    Ok(given.map(hub::resolve).transpose()?.into_iter().collect())
}
