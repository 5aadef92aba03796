//! Flags of a request: sampling, constraints and stop conditions.

use chat_format::Grammar;
use clap::{Args, Command};
use mlx_core::engine::RequestOptions;
use mlx_core::sampling::{SamplingDefaults, SamplingOptions};
use serde_json::Value;

use crate::sampling_flags::SamplingFlags;
use crate::terminal;

/// Request flags. Without a flag, the model's `generation_config.json` applies, then the default that the flag documents.
#[derive(Debug, Args)]
pub(crate) struct RequestArgs {
    /// Maximum number of tokens to generate [default: until the model stops or its context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_count)]
    max_tokens: Option<usize>,

    /// Maximum number of tokens in the model's thoughts, which are then closed; 0: no thoughts [default: no limit]
    #[arg(long, value_name = "N")]
    think_budget: Option<usize>,

    /// Stop when this text appears, without printing it; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    /// Continue after the model's end-of-text token
    #[arg(long)]
    ignore_eos: bool,

    #[command(flatten)]
    constraint: ConstraintArgs,

    #[command(flatten)]
    seed: SeedArgs,

    #[command(flatten)]
    sampling: SamplingFlags,

    #[command(flatten)]
    tokens: TokenArgs,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct ConstraintArgs {
    /// Constrain the answer to JSON that matches this schema; @FILE reads the schema from a file
    #[arg(help_heading = "Constraints", long, value_name = "SCHEMA", value_parser = parse_schema)]
    json_schema: Option<Value>,

    /// Constrain the answer to a full match of this regular expression
    #[arg(help_heading = "Constraints", long, value_name = "REGEX", allow_hyphen_values = true)]
    regex: Option<String>,

    /// Constrain the answer to this grammar, in llguidance's variant of Lark; @FILE reads the grammar from a file
    #[arg(help_heading = "Constraints", long, value_name = "LARK", value_parser = text_or_file)]
    grammar: Option<String>,
}

#[derive(Debug, Args)]
struct SeedArgs {
    /// Random seed; equal seeds give equal answers [default: a new one each time]
    #[arg(help_heading = "Sampling", short, long, value_name = "N")]
    seed: Option<u64>,
}

#[derive(Debug, Args)]
struct TokenArgs {
    /// Add BIAS to the logit of a token, as ID=BIAS; -inf forbids it; may be given several times
    #[arg(help_heading = "Sampling", long, value_name = "ID=BIAS", value_parser = parse_bias)]
    logit_bias: Vec<(u32, f32)>,

    /// Text that interrupts a repeated sequence; may be given several times; only "none" means no breakers
    /// [default: newline, colon, quotation mark, asterisk]
    #[arg(help_heading = "DRY (repeated sequences)", long, value_name = "TEXT", allow_hyphen_values = true)]
    dry_sequence_breaker: Vec<String>,
}

impl RequestArgs {
    pub(crate) fn options(&self, logprobs: Option<usize>) -> RequestOptions {
        RequestOptions {
            sampling: self.sampling_options(),
            sampling_defaults: SamplingDefaults::Chat,
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            think_budget: self.think_budget,
            logprobs,
            constraint: self.constraint.grammar().map(Grammar::into),
            prompt_progress: terminal::can_show_status(),
            ..RequestOptions::default()
        }
    }

    fn sampling_options(&self) -> SamplingOptions {
        let Self { seed, sampling, tokens, .. } = self;
        let breakers = match tokens.dry_sequence_breaker.as_slice() {
            [] => None,
            [none] if none == "none" => Some(Vec::new()),
            given => Some(given.to_vec()),
        };
        SamplingOptions {
            dry_sequence_breakers: breakers,
            logit_bias: tokens.logit_bias.clone(),
            seed: seed.seed,
            ..sampling.options().clone()
        }
    }
}

impl ConstraintArgs {
    fn grammar(&self) -> Option<Grammar> {
        let Self { json_schema, regex, grammar } = self;
        let of_schema = json_schema.clone().map(Grammar::JsonSchema);
        of_schema.or_else(|| regex.clone().map(Grammar::Regex)).or_else(|| grammar.clone().map(Grammar::Lark))
    }
}

/// Flags that accept `@FILE`.
const WITH_FILES: [&str; 2] = ["--json-schema", "--grammar"];

/// Replaces each `@FILE` on a command line with the text of the file.
pub(crate) fn inlined(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in words {
        let is_value = all.last().is_some_and(|before| WITH_FILES.contains(&before.as_str()));
        let joined = word.split_once('=').filter(|(flag, _)| WITH_FILES.contains(flag));
        let text = match joined {
            _ if is_value => text_or_file(&word),
            Some((flag, value)) => text_or_file(value).map(|text| format!("{flag}={text}")),
            None => Ok(word.clone()),
        };
        // The command has read the file before. If it was deleted since, its name stays.
        all.push(text.unwrap_or(word));
    }
    all
}

/// Makes a command reject `@FILE`, for arguments that come from a record.
pub(crate) fn without_files(command: Command) -> Command {
    fn text(given: &str) -> Result<String, String> {
        match given.strip_prefix('@') {
            None => Ok(given.to_owned()),
            Some(_) => Err("a record may not name a file".to_owned()),
        }
    }
    let schema = |given: &str| text(given).and_then(|text| parse_schema(&text));
    let command = command.mut_arg("json_schema", |arg| arg.value_parser(schema));
    command.mut_arg("grammar", |arg| arg.value_parser(text))
}

/// Returns the text, or that of the file after an @.
fn text_or_file(given: &str) -> Result<String, String> {
    match given.strip_prefix('@') {
        None => Ok(given.to_owned()),
        Some(file) => std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}")),
    }
}

fn parse_schema(given: &str) -> Result<Value, String> {
    serde_json::from_str(&text_or_file(given)?).map_err(|error| format!("it is not JSON: {error}"))
}

fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "it must be a number of at least 1".to_owned())
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| "it must be a token id and a number, as in 15043=-2.5".to_owned())
}
