//! `mlx replay`: recomputes answers that `mlx generate --json` recorded, and reports whether they are identical.

use std::io::{IsTerminal, stdin};
use std::path::PathBuf;

use chat_format::{Audio, Image};
use clap::parser::ValueSource;
use clap::{Args, FromArgMatches};
use mlx_core::Error;
use mlx_core::engine::{Engine, RequestOptions, TokenOutput};
use mlx_core::sampling::{SamplingDefaults, TokenLogprob};
use mlx_options::{PrefixCacheArgs, WorkersArgs};
use serde::Deserialize;
use serde_json::Value;

use crate::answer::{self, Answer, AnswerOutput};
use crate::completion::model_completer;
use crate::exit_code::Failure;
use crate::generate::GenerateArgs;
use crate::input::{read_audio, read_file, read_images, read_text};
use crate::interrupt::Interrupt;
use crate::model_args::{ModelArgs, ModelName};
use crate::profile_args::with_profile;
use crate::recorded_request::{RecordedRequest, hex};
use crate::repeat::{Comparison, compare, verdict};
use crate::request_args::without_files;
use crate::{sampling_values, terminal};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx generate MODEL 'Why is the sky blue?' --json | mlx replay
  mlx generate MODEL -p Hello --logprobs 0 --json > answers.json
  mlx replay answers.json                       # on another day

Compares tokens, and log probabilities bit for bit if the record has them (--logprobs). Exit code 1: an answer differs.

A record may come from another person, so only its sampling and precision flags are used. Pass its pictures,
recordings, adapter and hosts file here again.";

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Files of records, which are consecutive JSON objects; read from stdin if omitted
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Use this model instead of the folder that a record names
    #[arg(short, long, value_name = "MODEL", add = model_completer())]
    model: Option<PathBuf>,

    /// A picture that a record uses; may be given several times
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,

    /// A recording that a record uses; may be given several times
    #[arg(long, value_name = "FILE")]
    audio: Vec<PathBuf>,

    /// The adapter that the records use
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,

    #[command(flatten)]
    workers: WorkersArgs,
}

/// A recorded answer with its request.
#[derive(Deserialize)]
struct Record {
    request: RecordedRequest,
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
            differ |= !args.replay(number, &record)?;
        }
    }
    if number == 0 {
        return Err(Failure::usage("FILE", "has no records; `mlx generate --json` writes them"));
    }
    if differ { Err(Failure::Reported) } else { Ok(()) }
}

fn unreadable(number: usize, error: &serde_json::Error) -> Failure {
    Failure::usage("FILE", format!("record {number} was not written by `mlx generate --json`: {error}"))
}

impl ReplayArgs {
    /// Recomputes one record. Returns true if the answer is the same.
    fn replay(&self, number: usize, record: &Record) -> Result<bool, Failure> {
        let (engine, answer) = self.recompute(number, record)?;
        if let Some(failure) = answer.failure() {
            return Err(failure);
        }
        if !record.request.matches_model(&engine) {
            terminal::note(&format!(
                "{number}: the model's weights or configuration have changed since this was recorded"
            ));
        }
        let before: Vec<TokenOutput> = record.tokens.iter().map(token).collect();
        let verdict = verdict(&before, &answer.tokens, &engine.folder().tokenizer);
        terminal::show(&format!("{number}: {verdict}\n"))?;
        Ok(matches!(compare(&before, &answer.tokens), Comparison::Identical | Comparison::Tokens(None)))
    }

    /// Runs the recorded request again. It uses only the flags listed here and drops all others in the record.
    fn recompute(
        &self,
        number: usize,
        Record { request, seed, .. }: &Record,
    ) -> Result<(Engine, Answer), Failure> {
        let given = arguments(number, request)?;
        self.expect_overrides(number, request, &given)?;
        let (images, audio) = (self.images(number, request)?, self.audio(number, request)?);
        let mut options = with_profile(request.profile.as_ref(), &given.options.options(given.logprobs));
        options.sampling_defaults = SamplingDefaults::OpenAi;
        let wrong = |reason| Failure::usage("FILE", format!("record {number}: {reason}"));
        sampling_values::apply(&request.sampling, &mut options).map_err(wrong)?;
        options.sampling.seed = Some(*seed);
        let model = ModelArgs {
            name: ModelName::from_path(&self.model(number, request)?),
            adapter: self.adapter.clone(),
            workers: self.workers.clone(),
            exact: given.model.exact,
            device: given.model.device,
            load: given.model.load,
            kv_cache: given.model.kv_cache,
            ..ModelArgs::default()
        };
        let engine = model.start(&model.engine_options(&PrefixCacheArgs::default())?)?;
        let resized = |image: &Image| {
            let processor = engine.image_processor()?;
            processor.resized(image).map_err(|reason| Error::request("image", reason.to_string()))
        };
        let images = images.iter().map(resized).collect::<Result<Vec<_>, _>>()?;
        let images = images.into_iter().flat_map(|image| image.parts).collect();
        let heard = |audio: &Audio| {
            let clip = engine.audio_processor()?.clip(audio, &mut || Ok(()));
            clip.map_err(|reason| Error::request("audio", reason.to_string()))
        };
        let audio = audio.iter().map(heard).collect::<Result<_, _>>()?;
        let options = RequestOptions { images, audio, is_message: request.is_message, ..options };
        let request = engine.request(request.prompt_ids.clone(), &options)?;
        let answer = answer::read(engine.submit(request)?, &Interrupt::default(), AnswerOutput::Hidden)?;
        Ok((engine, answer))
    }

    /// Returns the model of the command line, or the folder in the record.
    fn model(&self, number: usize, recorded: &RecordedRequest) -> Result<PathBuf, Failure> {
        let folder = PathBuf::from(&recorded.model);
        match &self.model {
            Some(named) => Ok(named.clone()),
            None if folder.exists() => Ok(folder),
            None => {
                let reason = format!(
                    "is needed: record {number} has {:?}, which does not exist on this machine",
                    recorded.model
                );
                Err(Failure::usage("-m", reason))
            }
        }
    }

    /// Rejects a record if its answer depends on files or machines that the command line does not name.
    fn expect_overrides(
        &self,
        number: usize,
        recorded: &RecordedRequest,
        given: &GenerateArgs,
    ) -> Result<(), Failure> {
        let of_profile = recorded.profile.as_ref().and_then(|profile| profile.adapter.as_ref());
        let has_adapter = given.model.adapter.is_some() || of_profile.is_some();
        let missing = [
            ("--adapter", has_adapter && self.adapter.is_none()),
            ("--hostfile", given.model.workers.hostfile.is_some() && self.workers.hostfile.is_none()),
        ];
        let reason = format!("is needed: record {number} uses it, and file names in records are ignored");
        missing.iter().find(|it| it.1).map_or(Ok(()), |(flag, _)| Err(Failure::usage(flag, reason)))
    }

    /// Finds the pictures of a record among the files of `--image`.
    fn images(&self, number: usize, recorded: &RecordedRequest) -> Result<Vec<Image>, Failure> {
        let hashes = &recorded.files.images;
        if hashes.is_empty() {
            return Ok(Vec::new());
        }
        let given = read_images(&self.image)?;
        let find = |hash: &String| given.iter().find(|image| hex(image.hash()) == *hash).cloned();
        let found = hashes.iter().map(find).collect::<Option<_>>();
        found.ok_or_else(|| missing("--image", "images", number, hashes.len()))
    }

    /// Finds the recordings of a record among the files of `--audio`.
    fn audio(&self, number: usize, recorded: &RecordedRequest) -> Result<Vec<Audio>, Failure> {
        let hashes = &recorded.files.audio;
        if hashes.is_empty() {
            return Ok(Vec::new());
        }
        let given = read_audio(&self.audio)?;
        let find = |hash: &String| given.iter().find(|audio| hex(audio.hash()) == *hash).cloned();
        let found = hashes.iter().map(find).collect::<Option<_>>();
        found.ok_or_else(|| missing("--audio", "audio", number, hashes.len()))
    }
}

/// Returns the error for a record whose files are not all given.
fn missing(flag: &str, kind: &str, number: usize, count: usize) -> Failure {
    let reason = format!(
        "is needed: record {number} uses {kind} ({count}), and the given files do not include all of them"
    );
    Failure::usage(flag, reason)
}

/// Parses the flags of a record. Values of the form `@FILE` are rejected.
fn arguments(number: usize, recorded: &RecordedRequest) -> Result<GenerateArgs, Failure> {
    let words = std::iter::once("generate").chain(recorded.arguments.iter().map(String::as_str));
    let wrong =
        |error: clap::Error| Failure::usage("FILE", format!("record {number} has unknown flags: {error}"));
    let command = GenerateArgs::augment_args(clap::Command::new("generate")).args_override_self(true);
    let matches = without_files(command).try_get_matches_from(words).map_err(wrong)?;
    let mut args = GenerateArgs::from_arg_matches(&matches).map_err(wrong)?;
    if matches.value_source("memory_budget") == Some(ValueSource::CommandLine) {
        args.model.load.memory_budget = None;
    }
    Ok(args)
}

fn token(recorded: &RecordedToken) -> TokenOutput {
    let top = recorded.top.iter().map(|other| (other.id, other.logprob)).collect();
    let logprob = recorded.logprob.map(|logprob| TokenLogprob { logprob, top });
    TokenOutput { id: recorded.id, text: String::new(), delta: String::new(), logprob }
}
