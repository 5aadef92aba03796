//! `mlx cache`: prompts saved in a folder, which later runs restore instead of recomputing.

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

use crate::answer::AnswerOutput;
use crate::exit_code::Failure;
use crate::interrupt::Interrupt;
use crate::model_args::ModelArgs;
use crate::{answer, input, terminal};

/// The commands of `mlx cache`.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// List saved prompts
    List(FolderArgs),
    /// Compute a prompt and save it, such as a system prompt that many conversations share
    Save(Box<SaveArgs>),
    /// Remove saved prompts
    Rm(RemoveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FolderArgs {
    /// Folder of the saved prompts
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

    /// The text; read from stdin if omitted or -
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// Save the text as a system prompt, formatted by the model's chat template
    #[arg(long)]
    system: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    folder: FolderArgs,

    /// Names or their prefixes, as `mlx cache list` shows them
    #[arg(value_name = "NAME", required_unless_present = "all", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    names: Vec<String>,

    /// Remove everything, including damaged files
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

/// Rejects a missing folder, which is most likely a typo. The engine would treat it as empty.
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
    // The engine saves a prompt when its request ends, and a request generates at least one token.
    let one = RequestOptions { max_tokens: Some(1), ..RequestOptions::default() };
    let answer =
        answer::read(engine.submit(engine.request(tokens, &one)?)?, &interrupt, AnswerOutput::Hidden)?;
    if let Some(failure) = answer.failure() {
        return Err(failure);
    }
    // Dropping the engine writes the remaining blocks.
    drop(engine);
    terminal::note(&format!("{length} tokens computed; the whole blocks among them are saved"));
    Ok(())
}

/// Returns the tokens that all conversations with this system prompt share.
fn instructions(engine: &Engine, text: String) -> Result<Vec<u32>> {
    let system = Message::system(text);
    let prompt = |first: &str| {
        let messages = vec![system.clone(), Message::user(first)];
        let input = TemplateInput { messages, add_generation_prompt: true, ..TemplateInput::default() };
        Ok::<_, Error>(chat_prompt(engine, &input, NO_PAUSE)?.tokens)
    };
    let (mut one, other) = (prompt("A")?, prompt("1")?);
    let common = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
    // A template may produce nothing at all; the engine reports that.
    one.truncate(common.max(1));
    Ok(one)
}

fn remove(args: &RemoveArgs) -> Result<(), Failure> {
    let folder = &args.folder.folder();
    expect_folder(folder)?;
    let mut removed = if args.all { remove_all_saved(folder)? } else { 0 };
    for name in &args.names {
        let files = remove_saved(folder, name)?;
        if files == 0 {
            return Err(Failure::Usage(format!("{name} is not saved; `mlx cache list` shows what is")));
        }
        removed += files;
    }
    terminal::note(&format!("{removed} files removed"));
    Ok(())
}
