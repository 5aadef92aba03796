//! `mlx embed`: computes embeddings of texts.

mod table;
mod texts;

use clap::{ArgAction, Args};
use mlx_core::embeddings::{EmbedInput, EmbedOptions, Embedder};
use mlx_core::engine::{Engine, EngineOptions, Event, FinishReason, Generation, RequestOptions};
use mlx_core::sentence_transformers::PromptChoice;
use mlx_core::{Abilities, Error};
use mlx_options::{DeviceArgs, ExactArgs, LoadArgs};
use serde::Serialize;

use crate::exit_code::Failure;
use crate::model_args::ModelName;
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx embed MODEL 'The waves are high.'                      # one JSON object
  mlx embed MODEL 'A cat sleeps.' 'A dog naps.' 'Rates rise.'  # on a terminal: how similar they are
  mlx embed MODEL --query 'Who keeps the light?' --json
  mlx embed MODEL < lines.txt > vectors.jsonl                # one text a line
  mlx embed MODEL --dimensions 256 'The waves are high.'

A single argument is a text, unless it is ORG/NAME or a folder. Prints one JSON object a text. Up to 256 texts on a terminal become a table
of their similarities.";

/// Texts that the engine gets at once. Their vectors are printed before the next ones are computed. A table has no more texts.
const TEXTS_AT_ONCE: usize = 256;

#[derive(Debug, Args)]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    name: ModelName,

    /// The texts; read from stdin, one a line, if omitted
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// The texts are queries: put the model's prompt for queries before them
    #[arg(long, conflicts_with_all = ["prompt_name", "prompt"])]
    query: bool,

    /// Put this prompt of the model before each text [default: the model's default prompt, if any]
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    prompt_name: Option<String>,

    /// Put this text before each text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// Return only this many leading dimensions
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,

    /// Scale vectors to length 1 [default: as the model's files specify]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true, action = ArgAction::Set)]
    normalize: Option<bool>,

    /// Reject texts that are too long for the model instead of cutting them
    #[arg(long)]
    no_truncate: bool,

    /// Print JSON objects, also on a terminal
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    exact: ExactArgs,

    #[command(flatten)]
    load: LoadArgs,
}

/// A text with its embedding.
struct Embedded {
    text: String,
    vector: Vec<f32>,
    tokens: usize,
    is_cut: bool,
}

/// Runs the command.
pub(crate) fn run(args: &EmbedArgs) -> Result<(), Failure> {
    args.device.choose()?;
    let (name, texts) = texts::name_and_texts(&args.name, &args.texts)?;
    let folder = name.folder()?;
    // An invalid config is reported by the loader.
    let abilities = Abilities::of(&folder).unwrap_or_default();
    if abilities.reranks && !abilities.embeds {
        let message = "ranks documents and computes no embeddings; use `mlx serve` and POST /v1/rerank";
        return Err(Failure::usage("MODEL", message));
    }
    let wants_table = terminal::is_output_terminal() && !args.json && texts.len_is_several();
    let mut groups = texts.groups(TEXTS_AT_ONCE);
    let table = if wants_table { groups.only()? } else { None };
    let mut options = EngineOptions::default();
    args.exact.apply(&mut options);
    args.load.apply(&mut options);
    let engine = Engine::start(&folder, &options, terminal::load_bar())?;
    if abilities.chats && !abilities.embeds {
        let note = "is a chat model: its vectors say less than those of an embedding model";
        terminal::note(&format!("{} {note}", engine.folder().name()));
    }
    let count_cut = |texts: &[Embedded]| texts.iter().filter(|text| text.is_cut).count();
    let (mut index, mut cut) = (0, 0);
    if let Some(texts) = table {
        let compared = embed(&engine, &args.options(), texts)?;
        cut += count_cut(&compared);
        terminal::show(&table::similarities(&compared, terminal::columns()))?;
    }
    for texts in groups {
        let embedded = embed(&engine, &args.options(), texts?)?;
        cut += count_cut(&embedded);
        for text in embedded {
            terminal::show(&format!("{}\n", text.json(index)))?;
            index += 1;
        }
    }
    if cut > 0 {
        terminal::note(&format!("texts cut at the model's longest length: {cut}"));
    }
    Ok(())
}

impl EmbedArgs {
    fn options(&self) -> EmbedOptions {
        let prompt = match (&self.prompt_name, &self.prompt) {
            (Some(name), _) => PromptChoice::Named(name.clone()),
            (None, Some(text)) => PromptChoice::Text(text.clone()),
            (None, None) if self.query => PromptChoice::Query,
            (None, None) => PromptChoice::Default,
        };
        EmbedOptions {
            prompt,
            pooling: None,
            dimensions: self.dimensions,
            normalize: self.normalize,
            rejects_long: self.no_truncate,
        }
    }
}

/// The object of a text. Scripts rely on it: fields may be added, never changed.
#[derive(Serialize)]
struct Line<'a> {
    index: usize,
    text: &'a str,
    tokens: usize,
    truncated: bool,
    embedding: &'a [f32],
}

impl Embedded {
    fn json(&self, index: usize) -> String {
        let Self { text, vector, tokens, is_cut } = self;
        let line = Line { index, text, tokens: *tokens, truncated: *is_cut, embedding: vector };
        serde_json::to_string(&line).expect("a finite vector is JSON")
    }
}

/// Computes the embeddings of some texts.
fn embed(engine: &Engine, options: &EmbedOptions, texts: Vec<String>) -> Result<Vec<Embedded>, Failure> {
    let embedder = Embedder::new(engine, options).map_err(with_flag)?;
    let (mut requests, mut cut) = (Vec::new(), Vec::new());
    for text in &texts {
        let input = EmbedInput::Text(text);
        let made = embedder.request(input, &RequestOptions::default(), &|| Ok(())).map_err(with_flag)?;
        requests.push(made.request);
        cut.push(made.is_cut);
    }
    let form = embedder.form();
    let generations = engine.submit_all(requests)?;
    let one = |((text, is_cut), generation): ((String, bool), Generation)| {
        let (pooled, tokens) = result(generation)?;
        let vector = form.finish(engine.folder().embedding()?, pooled)?;
        Ok(Embedded { text, vector, tokens, is_cut })
    };
    texts.into_iter().zip(cut).zip(generations).map(one).collect()
}

/// Waits for the pooled hidden states of a text. Returns them with its number of tokens.
fn result(generation: Generation) -> Result<(Vec<f32>, usize), Failure> {
    let mut pooled = Vec::new();
    for event in generation {
        match event {
            Event::Embedding(values) => pooled = values,
            Event::Done(finished) => {
                return match finished.reason {
                    FinishReason::Error(message) => {
                        terminal::note(&format!("error: {message}"));
                        Err(Failure::Reported)
                    }
                    FinishReason::Cancelled => Err(Failure::Interrupted),
                    _ => Ok((pooled, finished.usage.prompt_tokens)),
                };
            }
            _ => {}
        }
    }
    Err(Error::Internal("a generation ended without its last event".to_owned()).into())
}

/// Returns an error that names a flag instead of a field.
fn with_flag(error: Error) -> Failure {
    let (field, message) = match error {
        Error::Request { field, message } | Error::ContextLength { field, message, .. } => (field, message),
        other => return other.into(),
    };
    let flag = match field {
        "dimensions" => "--dimensions",
        "prompt_name" => "--prompt-name",
        "input" => "TEXT",
        other => other,
    };
    Failure::usage(flag, message)
}
