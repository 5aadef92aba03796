//! `mlx replay`: computes answers again that `mlx generate --json` recorded, and says whether they are identical.

use std::io::{IsTerminal, stdin};
use std::path::PathBuf;

use clap::{Args, FromArgMatches};
use mlx_core::engine::TokenOutput;
use mlx_core::sampling::TokenLogprob;
use serde::Deserialize;
use serde_json::Value;

use crate::exit_code::Failure;
use crate::generate::{self, GenerateArgs};
use crate::input::{read_file, read_text};
use crate::recorded::Recorded;
use crate::repeat::{Comparison, compare, verdict};
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx generate MODEL 'Why is the sky blue?' --json | mlx replay
  mlx generate MODEL -p Hello --logprobs 0 --json > answers.json
  mlx replay answers.json                       # on another day

Tokens are compared and, where the record has them (--logprobs), log-probabilities bit for bit. Exit code 1: an answer is another one.";

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Files of records, one JSON object after the other; without any, what is piped in
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// A record.
#[derive(Deserialize)]
struct Record {
    request: Recorded,
    seed: u64,
    tokens: Vec<RecordedToken>,
}

#[derive(Deserialize)]
struct RecordedToken {
    id: u32,
    logprob: Option<f32>,
    #[serde(default)]
    top: Vec<RecordedAlternative>,
}

#[derive(Deserialize)]
struct RecordedAlternative {
    id: u32,
    logprob: f32,
}

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    if args.files.is_empty() && stdin().is_terminal() {
        return Err(Failure::usage(
            "FILE",
            "is missing; give what `mlx generate --json` wrote, or pipe it in",
        ));
    }
    let mut texts: Vec<String> = args.files.iter().map(|file| read_file(file)).collect::<Result<_, _>>()?;
    if texts.is_empty() {
        texts.push(read_text(None, None, "FILE")?);
    }
    let (mut number, mut differ) = (0, false);
    for text in &texts {
        for object in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
            number += 1;
            let object = object.map_err(|error| unreadable(number, &error))?;
            let record = serde_json::from_value(object).map_err(|error| unreadable(number, &error))?;
            differ |= !replay(number, &record)?;
        }
    }
    if number == 0 {
        return Err(Failure::usage("FILE", "has no records; `mlx generate --json` writes them"));
    }
    if differ { Err(Failure::Reported) } else { Ok(()) }
}

fn unreadable(number: usize, error: &serde_json::Error) -> Failure {
    Failure::usage("FILE", format!("record {number} is none of `mlx generate --json`: {error}"))
}

/// Computes one record again; whether it is the same.
fn replay(number: usize, record: &Record) -> Result<bool, Failure> {
    let generate = arguments(number, &record.request)?;
    let (engine, answer) = generate::again(&generate, &record.request, record.seed)?;
    if let Some(failure) = answer.failure() {
        return Err(failure);
    }
    if !record.request.is_of(&engine) {
        terminal::note(&format!(
            "{number}: the model has other weights or another configuration than when this was recorded"
        ));
    }
    let before: Vec<TokenOutput> = record.tokens.iter().map(token).collect();
    let said = verdict(&before, &answer.tokens, &engine.folder().tokenizer);
    terminal::show(&format!("{number}: {said}\n"))?;
    Ok(matches!(compare(&before, &answer.tokens), Comparison::Identical | Comparison::Tokens(None)))
}

/// The flags of the request.
fn arguments(number: usize, recorded: &Recorded) -> Result<GenerateArgs, Failure> {
    let words = std::iter::once("generate").chain(recorded.arguments.iter().map(String::as_str));
    let wrong = |error: clap::Error| {
        Failure::usage("FILE", format!("record {number} has flags that are not known here: {error}"))
    };
    let command = GenerateArgs::augment_args(clap::Command::new("generate")).args_override_self(true);
    let matches = command.try_get_matches_from(words).map_err(wrong)?;
    GenerateArgs::from_arg_matches(&matches).map_err(wrong)
}

fn token(recorded: &RecordedToken) -> TokenOutput {
    let top = recorded.top.iter().map(|other| (other.id, other.logprob)).collect();
    let logprob = recorded.logprob.map(|logprob| TokenLogprob { logprob, top });
    TokenOutput { id: recorded.id, text: String::new(), delta: String::new(), logprob }
}
