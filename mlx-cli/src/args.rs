//! The command line: all commands. Each command defines its flags in its own file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::{Arg, Command as Clap, CommandFactory, Parser, Subcommand};
use mlx_core::machine;
use mlx_hub::has_gguf_extension;
use mlx_server::args::LogFormat;

use crate::ask::{self, AskArgs};
use crate::bench::{self, BenchArgs};
use crate::cache::CacheCommand;
use crate::chat::ChatArgs;
use crate::cluster::ClusterCommand;
use crate::compare::{self, CompareArgs};
use crate::convert::{self, ConvertArgs};
use crate::default_model::{self, DefaultArgs};
use crate::doctor::DoctorArgs;
use crate::embed::{self, EmbedArgs};
use crate::generate::{self, GenerateArgs};
use crate::inspect::InspectArgs;
use crate::launch::{self, LaunchArgs};
use crate::models::{ListArgs, RemoveArgs};
use crate::parse::{self, ParseArgs};
use crate::ps::{PsArgs, StopArgs};
use crate::pull::PullArgs;
use crate::replay::{self, ReplayArgs};
use crate::score::ScoreArgs;
use crate::serve::ServeCommand;
use crate::service::{self, ServiceCommand};
use crate::transcribe::{self, TranscribeArgs};
use crate::worker::rank::RankArgs;
use crate::worker::{self, WorkerArgs};

/// Run language models on your own machine: chat, script, serve.
#[derive(Debug, Parser)]
#[command(
    name = "mlx",
    version = VERSION.as_str(),
    propagate_version = true,
    args_override_self = true,
    subcommand_value_name = "COMMAND",
    after_help = EXAMPLES
)]
pub(crate) struct Cli {
    /// Print timings, memory and loader messages to stderr
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,

    /// The command.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The versions of the program and of MLX.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mlx = machine::mlx_version().unwrap_or_else(|_| "of an unknown version".to_owned());
    format!("{} ({}), MLX {mlx}", env!("CARGO_PKG_VERSION"), env!("MLX_COMMIT"))
});

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Chat with a model in the terminal
    #[command(alias = "run", after_help = CHAT_EXAMPLES)]
    Chat(ChatArgs),
    /// Download a model from the Hugging Face Hub; resumes an interrupted download
    #[command(alias = "download", after_help = PULL_EXAMPLES)]
    Pull(PullArgs),
    /// List the models on this machine, also LM Studio's and Ollama's
    #[command(alias = "ls")]
    List(ListArgs),
    /// Serve models over HTTP with the APIs of OpenAI, Anthropic and Ollama
    #[command(alias = "server", after_help = SERVE_EXAMPLES)]
    Serve(ServeCommand),
    /// Answer one prompt, or continue one text, and exit
    #[command(after_help = generate::EXAMPLES)]
    Generate(GenerateArgs),
    /// Recompute recorded answers and report whether they are identical
    #[command(after_help = replay::EXAMPLES)]
    Replay(ReplayArgs),
    /// Show the answers of two models side by side
    #[command(after_help = compare::EXAMPLES)]
    Compare(CompareArgs),
    /// Ask the built-in guide a question about this program
    #[command(after_help = ask::EXAMPLES)]
    Ask(AskArgs),
    /// Set the default model
    #[command(after_help = default_model::EXAMPLES)]
    Default(DefaultArgs),
    /// Show a model's size and memory needs without loading it
    Inspect(InspectArgs),
    /// Quantize a model, cast it to another dtype or reshard its files
    #[command(alias = "quantize", after_help = convert::EXAMPLES)]
    Convert(ConvertArgs),
    /// Compute embeddings of texts, or show how similar they are
    #[command(after_help = embed::EXAMPLES)]
    Embed(EmbedArgs),
    /// Turn speech in audio files into text or subtitles
    #[command(after_help = transcribe::EXAMPLES)]
    Transcribe(TranscribeArgs),
    /// Remove a downloaded model
    Rm(RemoveArgs),
    /// Show how likely each token of a text is
    #[command(after_help = SCORE_EXAMPLES)]
    Score(ScoreArgs),
    /// Measure prefill and decode speed
    #[command(after_help = bench::EXAMPLES)]
    Bench(BenchArgs),
    /// Check this machine: device, speed, correctness
    Doctor(DoctorArgs),
    /// Run as a worker that holds a shard of a model (see --hostfile of `mlx serve`)
    #[command(after_help = worker::EXAMPLES)]
    Worker(WorkerArgs),
    /// Check the machines of a hosts file
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Run the engine of a server; only the server starts it
    #[command(hide = true)]
    Engine {
        /// The log format
        #[arg(long, value_enum, default_value_t = LogFormat::Auto)]
        log: LogFormat,
    },
    /// Work for one rank 0; only a worker starts it
    #[command(hide = true)]
    Rank(RankArgs),
    /// Manage prompts saved on disk
    #[command(subcommand)]
    Cache(CacheCommand),
    /// List the models in the memory of a running server
    Ps(PsArgs),
    /// Unload models of a running server
    Stop(StopArgs),
    /// Run the server as a service that starts at login
    #[command(subcommand, after_help = service::EXAMPLES)]
    Service(ServiceCommand),
    /// Print the commands that connect a coding agent to the server; --exec runs them
    #[command(after_help = launch::EXAMPLES)]
    Launch(LaunchArgs),
    /// Parse a model's raw output into reasoning, answer and tool calls
    #[command(after_help = parse::EXAMPLES)]
    Parse(ParseArgs),
    /// Print a shell completion script
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages
    Man {
        /// Output directory; one man page per command
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

const EXAMPLES: &str = "\
Examples:
  mlx chat                                        # start here
  mlx chat mlx-community/Qwen3-0.6B-4bit          # offers to download it
  git diff | mlx 'Write a commit message.'        # the same as mlx generate
  mlx serve mlx-community/Qwen3-0.6B-4bit         # an OpenAI-compatible server";

const CHAT_EXAMPLES: &str = "\
Examples:
  mlx chat
  mlx chat mlx-community/Qwen3-4B-4bit
  mlx chat guide                        # the built-in model, trained on this program
  mlx chat FOLDER --system 'Be brief.' --session talk.json";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  mlx completions bash > ~/.local/share/bash-completion/completions/mlx
  mlx completions zsh > ~/.zfunc/_mlx     # needs fpath+=~/.zfunc before compinit in ~/.zshrc
  mlx completions fish > ~/.config/fish/completions/mlx.fish

Model names complete too: mlx chat -m <Tab>";

const PULL_EXAMPLES: &str = "\
Examples:
  mlx pull ORG/NAME && mlx chat ORG/NAME
  mlx pull ORG/NAME@REVISION
  mlx pull https://huggingface.co/ORG/NAME
  mlx pull --offline ORG/NAME       # verify the downloaded files

When piped, prints the model's path. Models are stored in the Hugging Face cache. These variables apply:
HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HUB_OFFLINE.";

const SCORE_EXAMPLES: &str = "\
Examples:
  mlx score MODEL -t 'The sky is green.'
  mlx score MODEL --file letter.txt --format text
  mlx score MODEL --file letter.txt --format html --logprobs 5 -o letter.html
  cat book.txt | mlx score MODEL --stride 256 --json";

const SERVE_EXAMPLES: &str = "\
Examples:
  mlx serve MODEL
  mlx serve small=FOLDER large=OTHER --models-budget 16GB --idle-timeout 600
  mlx serve MODEL --host 0.0.0.0 --api-key-file keys.txt --allowed-host my-machine.example
  mlx serve MODEL --print-config > server.toml && mlx serve --config server.toml";

/// Headings of flags that only `--help` lists, not `-h`.
const LONG_HELP: [&str; 8] = [
    "Penalties",
    "DRY (repeated sequences)",
    "Cache",
    "Engine",
    "Stored responses",
    "Several machines",
    "Limits",
    "Constraints",
];

/// Returns the parser, which also generates help, man pages and completions.
pub(crate) fn command() -> Clap {
    quiet(Cli::command())
}

/// Hides the values of environment variables everywhere, and rare flags in the short help.
fn quiet(command: Clap) -> Clap {
    let arg = |arg: Arg| {
        let is_rare = arg.get_help_heading().is_some_and(|heading| LONG_HELP.contains(&heading));
        arg.hide_env_values(true).hide_short_help(is_rare)
    };
    command.mut_args(arg).mut_subcommands(quiet)
}

/// Inserts the default command when none is named: `mlx 'some words'`, `mlx some more words` and `mlx -m MODEL …` mean `generate`, and so does
/// `mlx word` if a text is piped to it. The path of a model means `chat`, or `generate` if more follows.
pub(crate) fn completed(mut arguments: Vec<OsString>, is_piped: bool) -> Vec<OsString> {
    let is_global = |word: &OsString| word == "-v" || word == "--verbose";
    let index = arguments.iter().skip(1).take_while(|word| is_global(word)).count() + 1;
    let Some(word) = arguments.get(index).and_then(|word| word.to_str()) else { return arguments };
    let about_the_program = ["-h", "--help", "-V", "--version", "--"].contains(&word);
    if word.contains(char::is_whitespace) || word.starts_with('-') && word.len() > 1 && !about_the_program {
        arguments.insert(index, "generate".into());
    } else if is_model(word) {
        let command = if arguments.len() > index + 1 || is_piped { "generate" } else { "chat" };
        arguments.insert(index, command.into());
    } else if let Some((prompt, count)) = bare_prompt(&arguments[index..], is_piped) {
        arguments.splice(index..index + count, ["generate".into(), prompt.into()]);
    }
    arguments
}

/// Returns true for the path of a model: a GGUF file, or a folder that is written as a path.
fn is_model(word: &str) -> bool {
    let path = Path::new(word);
    has_gguf_extension(path) && path.is_file() || word.contains('/') && path.join("config.json").is_file()
}

/// English words that begin prompts and differ from a command by one letter.
const COMMON_WORDS: [&str; 26] = [
    "bank", "can", "cat", "core", "full", "fun", "last", "lost", "lunch", "main", "many", "map", "max",
    "may", "mean", "men", "min", "pause", "reply", "scope", "step", "store", "task", "that", "top", "what",
];

/// Returns a prompt that is written without quotes, and its number of words. A single word or two may be a mistyped command, unless a text is
/// piped. More words are a mistyped command if the first one resembles a command and one of them is a file.
fn bare_prompt(arguments: &[OsString], is_piped: bool) -> Option<(String, usize)> {
    let words: Vec<&str> =
        arguments.iter().map_while(|word| word.to_str().filter(|word| !word.starts_with('-'))).collect();
    let first = words.first()?;
    let names: Vec<String> = command()
        .get_subcommands()
        .flat_map(|command| {
            command.get_all_aliases().chain([command.get_name()]).map(str::to_owned).collect::<Vec<_>>()
        })
        .chain(["help".to_owned()])
        .collect();
    if names.iter().any(|name| name == first) {
        return None;
    }
    let is_typo = || {
        !COMMON_WORDS.contains(&first.to_lowercase().as_str())
            && names.iter().any(|name| is_similar(name, first))
    };
    let is_file = |word: &&str| word.contains('/') && !word.contains("://") || Path::new(word).exists();
    let is_prompt = match words.len() {
        1 | 2 => is_piped && !is_typo(),
        _ => !(is_file(first) || is_typo() && words.iter().any(is_file)),
    };
    is_prompt.then(|| (words.join(" "), words.len()))
}

/// Returns true if two words differ by one letter, or by two swapped ones. Words of two letters, such as `ls` and `is`, are not similar.
fn is_similar(one: &str, other: &str) -> bool {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let (short, long) = if one.len() <= other.len() { (&one, &other) } else { (&other, &one) };
    if short.len() < 3 {
        return false;
    }
    let start = short.iter().zip(long).take_while(|(one, other)| one == other).count();
    let (short, long) = (&short[start..], &long[start..]);
    match long.len() - short.len() {
        0 => {
            short.len() <= 1
                || short[1..] == long[1..]
                || short.len() > 1 && short[0] == long[1] && short[1] == long[0] && short[2..] == long[2..]
        }
        1 => *short == long[1..],
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn words_and_flags_without_a_command_generate() {
        let completed_with = |words: &[&str], is_piped: bool| {
            let words = ["mlx"].iter().chain(words).map(OsString::from).collect();
            completed(words, is_piped)
                .into_iter()
                .skip(1)
                .map(|word| word.into_string().expect("text"))
                .collect::<Vec<_>>()
        };
        let completed = |words: &[&str]| completed_with(words, false);
        assert_eq!(completed(&["write a poem"]), ["generate", "write a poem"]);
        let question = ["generate", "why is the sky blue?", "--max-tokens", "5"];
        assert_eq!(completed(&["why", "is", "the", "sky", "blue?", "--max-tokens", "5"]), question);
        assert_eq!(completed(&["-v", "what", "is", "mlx"]), ["-v", "generate", "what is mlx"]);
        assert_eq!(completed_with(&["summarize"], true), ["generate", "summarize"]);
        assert_eq!(completed_with(&["translate", "this"], true), ["generate", "translate this"]);
        for unchanged in [&["chta"][..], &["serv"], &["list"], &["-"]] {
            assert_eq!(completed_with(unchanged, true), unchanged, "a mistyped command is no prompt");
        }
        for unchanged in [["chta", "org/name", "x"], ["src", "of", "what"]] {
            assert_eq!(completed(&unchanged), unchanged, "the tests run in a folder with src");
        }
        assert_eq!(completed_with(&["what", "changed"], true), ["generate", "what changed"]);
        let model = "../tests/golden/models/llama-f32";
        assert_eq!(completed(&[model]), ["chat", model]);
        assert_eq!(completed(&[model, "Hi"]), ["generate", model, "Hi"]);
        assert_eq!(completed_with(&[model], true), ["generate", model]);
        for word in COMMON_WORDS.into_iter().chain(["is", "as", "What"]) {
            assert_eq!(completed_with(&[word], true), ["generate", word]);
        }
        let names_a_file = ["why", "is", "the", "src", "and/or", "test"];
        assert_eq!(completed(&names_a_file), ["generate", &names_a_file.join(" ")]);
        assert_eq!(completed(&["-v", "-m", "a/b", "hello"]), ["-v", "generate", "-m", "a/b", "hello"]);
        for unchanged in
            [&["chat"][..], &["hello"], &["--help"], &["-V"], &[], &["-v"], &["-v", "list"], &["-"]]
        {
            assert_eq!(completed(unchanged), unchanged);
        }
    }

    /// Every flag is listed under the heading of its own group.
    #[test]
    fn headings_end_where_their_groups_do() {
        let command = command();
        let heading = |name: &str, flag: &str| {
            let command = command.find_subcommand(name).expect(name);
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag)).expect(flag);
            arg.get_help_heading().map(str::to_owned)
        };
        for (name, flags) in [
            (
                "generate",
                &["prompt", "prompt-file", "system", "raw", "max-tokens", "json", "logprobs", "model"][..],
            ),
            ("chat", &["session", "system", "plain", "tools", "think", "max-tokens"]),
            ("score", &["text", "file", "stride", "format", "json", "output"]),
            ("bench", &["batch", "prompt-lengths", "generate", "repeat", "compare", "json"]),
        ] {
            for flag in flags {
                assert_eq!(heading(name, flag), None, "{name} --{flag}");
            }
            assert_eq!(heading(name, "kv-bits").as_deref(), Some("Cache"), "{name}");
        }
        assert_eq!(heading("generate", "seed").as_deref(), Some("Sampling"));
        assert_eq!(heading("serve", "port").as_deref(), Some("Network"));
    }
}
