//! The command line: commands and their flags.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use mlx_core::chat::ContextPolicy;
use mlx_core::engine::EngineOptions;
use mlx_core::hub;
use mlx_guide as guide;
use mlx_options::{CacheArgs, ExactArgs, KvCacheArgs, LoadArgs, PrefixCacheArgs};
use mlx_server::args::ServeArgs;

use crate::bench::{self, BenchArgs};
use crate::cache::CacheCommand;
use crate::convert::{self, ConvertArgs};
use crate::doctor::DoctorArgs;
use crate::exit_code::Failure;
use crate::models::{ListArgs, RemoveArgs};
use crate::pull::PullArgs;
use crate::request_args::RequestArgs;
use crate::score::ScoreArgs;
use crate::think::ThinkArgs;

/// Run language models on your own machine: chat, script, serve.
#[derive(Debug, Parser)]
#[command(
    name = "mlx",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    args_override_self = true
)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt, or continue one text, and exit
    #[command(after_help = GENERATE_EXAMPLES)]
    Generate(GenerateArgs),
    /// Show how likely each token of a text is
    #[command(after_help = SCORE_EXAMPLES)]
    Score(ScoreArgs),
    /// Chat with a model in the terminal
    Chat(ChatArgs),
    /// Show a model's size, memory needs and what fits, without loading it
    Inspect(InspectArgs),
    /// Measure the speed of prompts and answers
    #[command(after_help = bench::EXAMPLES)]
    Bench(BenchArgs),
    /// Check this machine: device, speed, correctness
    Doctor(DoctorArgs),
    /// Quantize a model, cast it, or split it into other files
    #[command(after_help = convert::EXAMPLES)]
    Convert(ConvertArgs),
    /// Manage prompts saved on disk
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Download a model from the Hugging Face Hub; continues where it stopped
    #[command(after_help = PULL_EXAMPLES)]
    Pull(PullArgs),
    /// List downloaded models
    List(ListArgs),
    /// Remove a downloaded model
    Rm(RemoveArgs),
    /// Serve models over an OpenAI-compatible HTTP API
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Print a shell completion script
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages
    Man {
        /// Where to; one page for each command
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  mlx completions bash > ~/.local/share/bash-completion/completions/mlx
  mlx completions zsh > ~/.zfunc/_mlx
  mlx completions fish > ~/.config/fish/completions/mlx.fish";
const PULL_EXAMPLES: &str = "\
Examples:
  mlx pull ORG/NAME && mlx chat -m ORG/NAME
  mlx pull ORG/NAME@REVISION
  mlx pull --offline ORG/NAME       # is everything there, and is it what the hub has?

The last line of the output is the folder. Models lie where the hub's other tools keep them. These of their variables count:
HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HUB_OFFLINE.";

const SCORE_EXAMPLES: &str = "\
Examples:
  mlx score -m FOLDER -t 'The sky is green.'
  mlx score -m FOLDER --file letter.txt --format text
  mlx score -m FOLDER --file letter.txt --format html --logprobs 5 -o letter.html
  cat book.txt | mlx score -m FOLDER --stride 256 --json";

const SERVE_EXAMPLES: &str = "\
Examples:
  mlx serve -m FOLDER
  mlx serve -m small=FOLDER -m large=OTHER --models-budget 16GB --idle-timeout 600
  mlx serve -m FOLDER --host 0.0.0.0 --api-key-file keys.txt --allowed-host my-machine.example
  mlx serve -m FOLDER --print-config > server.toml && mlx serve --config server.toml";

const GENERATE_EXAMPLES: &str = "\
Examples:
  mlx generate -m FOLDER -p 'Why is the sky blue?'
  cat letter.txt | mlx generate -m FOLDER --system 'Summarize what you are given.'
  mlx generate -m FOLDER --raw -p 'Once upon a time' --max-tokens 100
  mlx generate -m FOLDER -p Hello --seed 7 --logprobs 3 --json

Exit codes: 0 done, 1 failed, 2 the command line asks for something impossible, 130 interrupted.";

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten, next_help_heading = "Cache")]
    pub(crate) prefix_cache: PrefixCacheArgs,

    /// The prompt; without it, or with -, what is piped in is the prompt
    #[arg(short, long, value_name = "TEXT", conflicts_with = "prompt_ids", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,

    /// The prompt is the text of this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "prompt_ids"])]
    pub(crate) prompt_file: Option<PathBuf>,

    /// The prompt as token ids; nothing is added to them
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["raw", "system"])]
    pub(crate) prompt_ids: Option<Vec<u32>>,

    /// Instructions that stand before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,

    /// Continue the text as it is, without the model's chat template
    #[arg(long)]
    pub(crate) raw: bool,

    #[command(flatten)]
    pub(crate) think: ThinkArgs,

    #[command(flatten)]
    pub(crate) options: RequestArgs,

    /// Report the log-probability of each token and of its N likeliest alternatives (0 to 20; with --json)
    #[arg(long, value_name = "N", requires = "json")]
    pub(crate) logprobs: Option<usize>,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten, next_help_heading = "Cache")]
    pub(crate) prefix_cache: PrefixCacheArgs,

    /// Instructions for the whole conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,

    /// The first message is the text of this file
    #[arg(long, value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,

    /// Keep the conversation in this file, and go on with it if it is there
    #[arg(long, value_name = "FILE")]
    pub(crate) session: Option<PathBuf>,

    /// No colors and no status line; also off when NO_COLOR is set or output is not a terminal
    #[arg(long)]
    pub(crate) plain: bool,

    /// When the conversation outgrows the model's context: evict-turns forgets the oldest turns, slide does and lets
    /// answers go on without end, stop ends with an error
    #[arg(long, value_name = "POLICY", env = "MLX_CONTEXT_POLICY", default_value = "evict-turns")]
    pub(crate) context_policy: ContextPolicy,

    #[command(flatten)]
    pub(crate) think: ThinkArgs,

    #[command(flatten)]
    pub(crate) options: RequestArgs,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The model: a name that `mlx list` shows, or a folder with config.json and safetensors
    #[arg(short, long, value_name = "MODEL", env = "MLX_MODEL")]
    pub(crate) model: PathBuf,

    #[command(flatten)]
    pub(crate) load: LoadArgs,

    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

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
