//! The command line: what can be asked for, in words a newcomer understands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use mlx_core::engine::RequestOptions;
use mlx_core::sampling::SamplingOptions;

/// Run language models on this machine: chat with them, or let them continue a text.
#[derive(Debug, Parser)]
#[command(name = "mlx", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt, or continue one text, and exit
    #[command(after_help = GENERATE_EXAMPLES)]
    Generate(GenerateArgs),
    /// Talk with a model; /help lists what can be typed
    Chat(ChatArgs),
}

const GENERATE_EXAMPLES: &str = "\
Examples:
  mlx generate -m FOLDER -p 'Why is the sky blue?'
  cat letter.txt | mlx generate -m FOLDER --system 'Summarise what you are given.'
  mlx generate -m FOLDER --raw -p 'Once upon a time' --max-tokens 100
  mlx generate -m FOLDER -p Hello --seed 7 --logprobs 3 --json

Exit codes: 0 done, 1 failed, 2 the command line asks for something impossible, 130 interrupted.";

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// The prompt; without it, or with -, what is piped in is the prompt
    #[arg(short, long, value_name = "TEXT", conflicts_with = "prompt_ids", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,

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
    pub(crate) options: OptionArgs,

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

    /// Instructions for the whole conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,

    #[command(flatten)]
    pub(crate) options: OptionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// The model: a folder with config.json, safetensors and tokenizer.json
    #[arg(short, long, value_name = "FOLDER", env = "MLX_MODEL")]
    pub(crate) model: PathBuf,

    /// Say what happens: timings, memory, notes of the loader (on standard error)
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// How an answer is drawn and where it ends. Without a flag the model's `generation_config.json` decides, then ours.
#[derive(Debug, Args)]
pub(crate) struct OptionArgs {
    /// The most tokens to generate [default: until the model ends or its context is full]
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<usize>,

    /// Randomness: 0 always takes the likeliest token [default: the model's, else 1]
    #[arg(long, visible_alias = "temp", value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,

    /// Draw from the K likeliest tokens; 0 is off [default: the model's, else off]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,

    /// Draw from the fewest tokens that are P likely together; 1 is off [default: the model's, else off]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,

    /// Never draw a token less likely than this share of the likeliest; 0 is off [default: the model's, else off]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,

    /// The same seed gives the same answer [default: a new one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// End before this text comes; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    /// Go on when the model ends its text
    #[arg(long)]
    ignore_eos: bool,
}

impl OptionArgs {
    pub(crate) fn request(&self, logprobs: Option<usize>) -> RequestOptions {
        RequestOptions {
            sampling: SamplingOptions {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                seed: self.seed,
            },
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            logprobs,
        }
    }
}
