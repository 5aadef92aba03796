//! `mlx cache`: prompts saved in a folder, which later runs restore instead of computing them.

use std::path::{Path, PathBuf};

use chat_format::text::NO_PAUSE;
use chat_format::{Message, TemplateInput};
use clap::{Args, Subcommand};
use mlx_core::cache::{list_saved, remove_all_saved, remove_saved};
use mlx_core::chat::chat_prompt;
use mlx_core::engine::{Engine, RequestOptions};
use mlx_core::{Error, Result};
use mlx_files::size;
use mlx_hub::expanded;
use mlx_options::PrefixCacheArgs;

use crate::answer::Show;
use crate::exit_code::Failure;
use crate::interrupt::Interrupt;
use crate::model_args::ModelArgs;
use crate::{answer, input, terminal};

/// The commands of `mlx cache`.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// List saved prompts
    List(FolderArgs),
    /// Compute a prompt and save it, such as instructions that many conversations begin with
    Save(Box<SaveArgs>),
    /// Remove saved prompts
    Rm(RemoveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FolderArgs {
    /// The folder
    #[arg(long, value_name = "FOLDER", env = "MLX_PROMPT_CACHE_DIR")]
    prompt_cache_dir: PathBuf,
}

impl FolderArgs {
    fn folder(&self) -> PathBuf {
        expanded(&self.prompt_cache_dir)
    }
}

#[derive(Debug, Args)]
pub(crate) struct SaveArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    prefix_cache: PrefixCacheArgs,

    /// The text; without it, or with -, what is piped in is the text
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// Save the text as the instructions of conversations, as the model's chat template writes them
    #[arg(long)]
    system: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    folder: FolderArgs,

    /// The names, or how they begin, as `mlx cache list` shows them
    #[arg(value_name = "NAME", required_unless_present = "all", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    names: Vec<String>,

    /// Remove everything, damaged files too
    #[arg(long, conflicts_with = "names")]
    all: bool,
}

/// Runs the command.
pub(crate) fn run(command: &CacheCommand) -> Result<(), Failure> {
    match command {
        CacheCommand::List(args) => list(&args.folder()),
        CacheCommand::Save(args) => save(args),
        CacheCommand::Rm(args) => remove(args),
    }
}

/// A missing folder is most likely a typing error, though the engine takes it as empty.
fn expect_folder(folder: &Path) -> Result<(), Failure> {
    if folder.is_dir() {
        Ok(())
    } else {
        Err(Failure::usage("--prompt-cache-dir", format!("{} is not a folder", folder.display())))
    }
}

fn list(folder: &Path) -> Result<(), Failure> {
    expect_folder(folder)?;
    let saved = list_saved(folder)?;
    let line = |text: &mlx_core::cache::SavedPrefix| {
        let (model, tokens, bytes) = (&text.model[..8], text.tokens.len(), size(text.bytes));
        format!("{}  model {model}  {tokens} tokens  {bytes}\n", &text.name[..16])
    };
    terminal::show(&saved.iter().map(line).collect::<String>())?;
    terminal::note(&format!("{} texts", saved.len()));
    Ok(())
}

fn save(args: &SaveArgs) -> Result<(), Failure> {
    let text = input::read_text(args.prompt.as_deref(), None, "--prompt")?;
    let options = args.model.engine_options(&args.prefix_cache)?;
    if options.prompt_cache.is_none() {
        return Err(Failure::usage("--prompt-cache-dir", "is missing; it is the folder to save to"));
    }
    let interrupt = Interrupt::install();
    let engine = args.model.start(&options)?;
    let tokens = if args.system {
        instructions(&engine, text)?
    } else {
        engine.folder().tokenizer.encode(&text, true)?
    };
    let length = tokens.len();
    // The engine saves a prompt when the request ends, and a request generates at least one token.
    let one = RequestOptions { max_tokens: Some(1), ..RequestOptions::default() };
    let answer = answer::read(engine.submit(engine.request(tokens, &one)?)?, &interrupt, Show::Nothing)?;
    if let Some(failure) = answer.failure() {
        return Err(failure);
    }
    // The last of it is written when the engine ends.
    drop(engine);
    terminal::note(&format!("{length} tokens computed; what is whole blocks of them is saved"));
    Ok(())
}

/// The tokens that conversations with these instructions have in common.
fn instructions(engine: &Engine, text: String) -> Result<Vec<u32>> {
    let system = Message::system(text);
    let prompt = |first: &str| {
        let messages = vec![system.clone(), Message::user(first)];
        let input = TemplateInput { messages, add_generation_prompt: true, ..TemplateInput::default() };
        Ok::<_, Error>(chat_prompt(engine, &input, NO_PAUSE)?.tokens)
    };
    let (mut one, other) = (prompt("A")?, prompt("1")?);
    let common = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
    // A template may give nothing at all; the engine says so then.
    one.truncate(common.max(1));
    Ok(one)
}

fn remove(args: &RemoveArgs) -> Result<(), Failure> {
    let folder = &args.folder.folder();
    expect_folder(folder)?;
    let mut gone = if args.all { remove_all_saved(folder)? } else { 0 };
    for name in &args.names {
        let files = remove_saved(folder, name)?;
        if files == 0 {
            return Err(Failure::Usage(format!("{name} is not saved; `mlx cache list` shows what is")));
        }
        gone += files;
    }
    terminal::note(&format!("{gone} files removed"));
    Ok(())
}
