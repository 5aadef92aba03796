//! The command line: the commands. The flags of each are in its own file.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use mlx_server::args::ServeArgs;

use crate::ask::{self, AskArgs};
use crate::bench::{self, BenchArgs};
use crate::cache::CacheCommand;
use crate::chat::ChatArgs;
use crate::convert::{self, ConvertArgs};
use crate::doctor::DoctorArgs;
use crate::generate::{self, GenerateArgs};
use crate::inspect::InspectArgs;
use crate::launch::{self, LaunchArgs};
use crate::models::{ListArgs, RemoveArgs};
use crate::parse::{self, ParseArgs};
use crate::pull::PullArgs;
use crate::score::ScoreArgs;

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
    #[command(after_help = generate::EXAMPLES)]
    Generate(GenerateArgs),
    /// Show how likely each token of a text is
    #[command(after_help = SCORE_EXAMPLES)]
    Score(ScoreArgs),
    /// Chat with a model in the terminal
    Chat(ChatArgs),
    /// Ask the built-in guide a question about this program
    #[command(after_help = ask::EXAMPLES)]
    Ask(AskArgs),
    /// Show a model's size, memory needs and what fits, without loading it
    Inspect(InspectArgs),
    /// Show what a model's raw output means: thoughts, answer and calls of tools
    #[command(after_help = parse::EXAMPLES)]
    Parse(ParseArgs),
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
    /// Serve models over HTTP: the APIs of OpenAI, Anthropic and Ollama
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Point a coding agent at the server: print the commands, or run it with --exec
    #[command(after_help = launch::EXAMPLES)]
    Launch(LaunchArgs),
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
