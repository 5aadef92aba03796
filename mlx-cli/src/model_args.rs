//! Flags that name a model and configure how it runs, shared by all commands that load one.

use std::path::{Path, PathBuf};

use clap::Args;
use mlx_core::backend::DEVICE;
use mlx_core::engine::{Engine, EngineOptions};
use mlx_engine_process::Program;

use mlx_options::{
    CacheArgs, DeviceArgs, ExactArgs, KvCacheArgs, LOG_VARIABLE, LoadArgs, PrefixCacheArgs, SpeculateArgs,
    WorkersArgs,
};

use crate::completion::model_completer;
use crate::exit_code::Failure;
use crate::model_choice;
use crate::terminal;

/// The model of a command, as its first argument or as a flag.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ModelName {
    /// The model: a name that `mlx list` shows, ORG/NAME or ORG/NAME:QUANTIZATION to download, a folder, a GGUF file, or guide
    #[arg(value_name = "MODEL", add = model_completer())]
    word: Option<PathBuf>,

    /// The model, as a flag [default: MLX_MODEL, else the model of `mlx default`]
    #[arg(short, long, value_name = "MODEL", add = model_completer())]
    pub(crate) model: Option<PathBuf>,
}

impl ModelName {
    /// Returns the model named on the command line.
    pub(crate) fn given(&self) -> Result<Option<&Path>, Failure> {
        match (&self.word, &self.model) {
            (Some(word), Some(_)) => {
                let message = format!("names a model, but so does {}; give only one", word.display());
                Err(Failure::usage("-m", message))
            }
            (word, flag) => Ok(word.as_deref().or(flag.as_deref())),
        }
    }

    /// Returns the flag for a model's name or folder.
    pub(crate) fn from_path(model: &Path) -> Self {
        Self { word: None, model: Some(PathBuf::from(model)) }
    }

    /// Returns the first argument, which may have another meaning in some commands.
    pub(crate) fn word(&self) -> Option<&Path> {
        self.word.as_deref()
    }

    /// Removes the first argument if it was not the model.
    pub(crate) fn without_positional(self) -> Self {
        Self { word: None, ..self }
    }

    /// Returns the folder of the named model, or of the default model.
    pub(crate) fn folder(&self) -> Result<PathBuf, Failure> {
        model_choice::find(self.given()?)
    }
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    pub(crate) name: ModelName,

    /// An adapter of the model: a folder with adapter_config.json, as mlx-lm or PEFT writes it
    #[arg(long, value_name = "FOLDER")]
    pub(crate) adapter: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    #[command(flatten)]
    pub(crate) exact: ExactArgs,

    #[command(flatten)]
    pub(crate) speculate: SpeculateArgs,

    #[command(flatten)]
    pub(crate) load: LoadArgs,

    /// Print timings, memory and loader messages to stderr
    #[arg(short, long)]
    pub(crate) verbose: bool,

    #[command(flatten)]
    pub(crate) kv_cache: KvCacheArgs,

    #[command(flatten)]
    pub(crate) workers: WorkersArgs,
}

/// Starts an engine on the model in a folder. That of a model on several machines runs in a child process: if a machine is lost, a new child
/// continues its requests.
pub(crate) fn start(folder: &Path, options: &EngineOptions, device: DeviceArgs) -> mlx_core::Result<Engine> {
    if options.workers.is_none() {
        return Engine::start(folder, options, terminal::load_bar());
    }
    let failed = |error| mlx_core::Error::EngineStopped(format!("cannot find this program: {error}"));
    let mut program = Program::this(&["engine", "--log", "text"]).map_err(failed)?;
    if let Some(kind) = device.device {
        program.environment.push((DEVICE.into(), kind.to_string().into()));
    }
    if std::env::var_os(LOG_VARIABLE).is_none() {
        program.environment.push((LOG_VARIABLE.into(), "warn".into()));
    }
    mlx_engine_process::start(&program, folder, options, terminal::load_bar())
}

impl ModelArgs {
    /// Returns the folder of the model.
    pub(crate) fn folder(&self) -> Result<PathBuf, Failure> {
        self.name.folder()
    }

    /// Starts an engine on the model. Requests use the adapter, if one was given.
    pub(crate) fn start(&self, options: &EngineOptions) -> Result<Engine, Failure> {
        self.adapted(start(&self.folder()?, options, self.device)?)
    }

    /// Like [`Self::start`], for a model that has to generate text.
    pub(crate) fn start_chat(&self, options: &EngineOptions) -> Result<Engine, Failure> {
        let folder = self.folder()?;
        model_choice::expect_chat_model(&folder)?;
        self.adapted(start(&folder, options, self.device)?)
    }

    /// Returns an engine handle for requests with the adapter, if one was given.
    pub(crate) fn adapted(&self, engine: Engine) -> Result<Engine, Failure> {
        Ok(if self.adapter.is_some() { engine.with_adapter(0)? } else { engine })
    }

    /// Returns the options of an engine that runs one request at a time. It also selects the device, so call it before anything computes.
    pub(crate) fn engine_options(&self, prefix_cache: &PrefixCacheArgs) -> Result<EngineOptions, Failure> {
        self.device.choose()?;
        let cache = CacheArgs { prefix: prefix_cache.clone(), kv: self.kv_cache, ..CacheArgs::default() };
        cache.check().map_err(|(flag, reason)| Failure::usage(flag, reason))?;
        let mut options = EngineOptions::single();
        self.exact.apply(&mut options);
        self.speculate.apply(&mut options);
        self.load.apply(&mut options);
        cache.apply(&mut options);
        options.workers = self.workers.read()?;
        options.adapters = adapters(self.adapter.as_deref())?;
        Ok(options)
    }
}

/// Returns the folder of the given adapter as a list.
pub(crate) fn adapters(given: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    Ok(given.map(mlx_hub::resolve_adapter).transpose()?.into_iter().collect())
}
