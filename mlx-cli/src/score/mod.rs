//! `mlx score`: computes the log probability of a text of any length.

mod html;
mod marked;
mod scored;
mod windows;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mlx_core::Error;
use mlx_core::engine::{Engine, RequestOptions, Task};
use mlx_core::sampling::MAX_TOP_LOGPROBS;
use mlx_options::PrefixCacheArgs;

use crate::answer::{self, AnswerOutput};
use crate::exit_code::Failure;
use crate::interrupt::Interrupt;
use crate::model_args::ModelArgs;
use crate::{input, terminal};
use scored::ScoredText;
use windows::windows;

#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    prefix_cache: PrefixCacheArgs,

    /// The text; read from stdin if omitted or -
    #[arg(short, long, visible_alias = "prompt", value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,

    /// Read the text from this file; - means standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,

    /// The text as token ids, used unchanged
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["text", "file"])]
    prompt_ids: Option<Vec<u32>>,

    /// Report the N likeliest tokens at each position (0 to 20; in formats json and html)
    #[arg(long, value_name = "N")]
    logprobs: Option<usize>,

    /// Distance between window starts, in tokens, for a text longer than the model's context [default: half of the context]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,

    /// Output format: a table of tokens, the text with unlikely tokens marked, an HTML page, or one JSON object
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    format: Format,

    /// Same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Text,
    Html,
    Json,
}

/// Runs the command.
pub(crate) fn run(args: &ScoreArgs) -> Result<(), Failure> {
    let format = if args.json { Format::Json } else { args.format };
    if args.logprobs.is_some() && !matches!(format, Format::Json | Format::Html) {
        return Err(Failure::usage("--logprobs", "is for formats json and html"));
    }
    if let Some(count) = args.logprobs.filter(|count| *count > MAX_TOP_LOGPROBS) {
        let message = format!("is {count}; it must be from 0 to {MAX_TOP_LOGPROBS}");
        return Err(Failure::usage("--logprobs", message));
    }
    let text = args.read()?;
    let interrupt = Interrupt::install();
    let engine = args.model.start(&args.model.engine_options(&args.prefix_cache)?)?;
    let tokens = match &args.prompt_ids {
        Some(ids) => ids.clone(),
        None => engine.folder().tokenizer.encode(&text, true)?,
    };
    let scored = args.score(&engine, &interrupt, &tokens)?;
    let output = match format {
        Format::Table => scored.table(),
        Format::Text if args.output.is_none() && terminal::has_colors() => {
            return terminal::show_styled(&marked::page(&scored.printable(), &marked::COLORS));
        }
        Format::Text => marked::page(&scored, &marked::BRACKETS),
        Format::Html => html::page(&scored, &args.title(), &engine),
        Format::Json => format!("{}\n", scored.json()),
    };
    match &args.output {
        None => Ok(terminal::show(&output)?),
        Some(path) => Ok(std::fs::write(path, output).map_err(|error| Error::io(path, error))?),
    }
}

impl ScoreArgs {
    /// Returns the text, unless it is given as tokens.
    fn read(&self) -> Result<String, Failure> {
        match &self.file {
            _ if self.prompt_ids.is_some() => Ok(String::new()),
            Some(path) if path.as_os_str() == "-" => input::read_text(Some("-"), None, "--file"),
            file => input::read_text(self.text.as_deref(), file.as_deref(), "--text"),
        }
    }

    /// Returns an error that names the flag of the text.
    fn with_text_flag(&self, error: Error) -> Failure {
        let Error::Request { field: "prompt", message } = error else { return error.into() };
        let given = [("--prompt-ids", self.prompt_ids.is_some()), ("--file", self.file.is_some())];
        let flag = given.iter().find(|it| it.1).map_or("--text", |it| it.0);
        Failure::usage(flag, message)
    }

    /// Returns the title of the page.
    fn title(&self) -> String {
        let name = self.file.as_ref().and_then(|path| path.file_name());
        name.map_or_else(|| "a text".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    /// Scores every token once, in windows.
    fn score(&self, engine: &Engine, interrupt: &Interrupt, tokens: &[u32]) -> Result<ScoredText, Failure> {
        let context = engine.spec().context_length;
        let stride = self.stride.unwrap_or(context.div_ceil(2));
        if stride == 0 || stride >= context.max(2) {
            let message =
                format!("is {stride}; it must be from 1 to {}, one less than the context", context - 1);
            return Err(Failure::usage("--stride", message));
        }
        let options =
            RequestOptions { task: Task::Score, prompt_logprobs: self.logprobs, ..RequestOptions::default() };
        let windows = windows(tokens.len(), context, stride);
        let mut scored = ScoredText { tokens: Vec::with_capacity(tokens.len()), windows: windows.len() };
        for window in windows {
            let request = engine.request(tokens[window.clone()].to_vec(), &options);
            let request = request.map_err(|error| self.with_text_flag(error))?;
            let answer = answer::read(engine.submit(request)?, interrupt, AnswerOutput::Hidden)?;
            if let Some(failure) = answer.failure() {
                return Err(failure);
            }
            // The previous window scored these tokens; here they are only context.
            let known = scored.tokens.len() - window.start;
            scored.tokens.extend(answer.prompt.into_iter().skip(known));
            if self.model.verbose {
                terminal::note(&format!("{} of {} tokens scored", scored.tokens.len(), tokens.len()));
            }
        }
        // Decode all tokens as one text, since a window may start inside a character.
        let mut text = engine.folder().tokenizer.detokenizer(false);
        for token in &mut scored.tokens {
            token.text = text.push(token.id);
        }
        if let Some(last) = scored.tokens.last_mut() {
            last.text += &text.finish();
        }
        Ok(scored)
    }
}
