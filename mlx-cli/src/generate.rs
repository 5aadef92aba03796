//! `mlx generate`: one prompt, one answer.

use std::path::{Path, PathBuf};
use std::time::Instant;

use chat_format::text::NO_PAUSE;
use chat_format::{Audio, Image, Message, OutputParser, Part, Pixels, TemplateInput};
use clap::Args;
use mlx_core::chat::{ChatPrompt, ChatStream, ContextPolicy, chat_prompt_within};
use mlx_core::engine::{Engine, FinishReason, RequestOptions, TokenOutput};
use mlx_core::sampling::TokenLogprob;
use mlx_core::{AudioClip, Error, Result};
use mlx_options::{PrefixCacheArgs, Profile};
use serde_json::{Value, json};

use crate::answer::{self, Answer, AnswerOutput};
use crate::chat::{Colors, Screen, ThoughtView};
use crate::exit_code::Failure;
use crate::input;
use crate::interrupt::Interrupt;
use crate::model_args::ModelArgs;
use crate::model_choice;
use crate::profile_args::{
    ProfileArgs, model_with_profile, think_error, thinking_with_profile, with_profile,
};
use crate::recorded_request::{FileHashes, RecordedRequest};
use crate::request_args::RequestArgs;
use crate::terminal;
use crate::think::ThinkArgs;

/// Examples shown after the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx generate MODEL 'Why is the sky blue?'
  git diff | mlx generate 'Write a commit message.'     # same as `git diff | mlx 'Write …'`
  cat letter.txt | mlx generate MODEL --system 'Summarize what you are given.'
  mlx generate MODEL 'What is in the picture?' --image photo.jpg
  mlx generate MODEL 'What is said?' --audio voice.mp3
  mlx generate MODEL --raw -p 'Once upon a time' --max-tokens 100
  mlx generate MODEL -p Hello --seed 7 --logprobs 3 --json

A single argument is the prompt, unless it is ORG/NAME, a folder or guide, or -p gives the prompt. Without -p, piped text is appended to
the prompt.

Exit codes: 0 done, 1 failed, 2 invalid usage, 130 interrupted.";

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    profile: ProfileArgs,

    #[command(flatten)]
    prefix_cache: PrefixCacheArgs,

    /// The prompt; piped text is appended
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "prompt_file", "prompt_ids"])]
    text: Option<String>,

    /// The prompt; read from stdin if omitted or -
    #[arg(short, long, value_name = "TEXT", conflicts_with = "prompt_ids", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// Read the prompt from this file
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with_all = ["prompt", "prompt_ids"])]
    prompt_file: Option<PathBuf>,

    /// The prompt as token ids, used unchanged
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["raw", "system"])]
    prompt_ids: Option<Vec<u32>>,

    /// A picture before the prompt: png, jpeg, webp or gif; may be given several times
    #[arg(long, value_name = "FILE", conflicts_with_all = ["raw", "prompt_ids"])]
    pub(crate) image: Vec<PathBuf>,

    /// A recording before the prompt: wav, flac, mp3, m4a, aac or ogg; may be given several times
    #[arg(long, value_name = "FILE", conflicts_with_all = ["raw", "prompt_ids"])]
    pub(crate) audio: Vec<PathBuf>,

    /// System prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", allow_hyphen_values = true)]
    system: Option<String>,

    /// Continue the text without the model's chat template
    #[arg(long)]
    raw: bool,

    #[command(flatten)]
    think: ThinkArgs,

    #[command(flatten)]
    pub(crate) options: RequestArgs,

    /// Report the log-probability of each token and of its N likeliest alternatives (0 to 20; with --json)
    #[arg(long, value_name = "N", requires = "json")]
    pub(crate) logprobs: Option<usize>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &GenerateArgs) -> Result<(), Failure> {
    // Check the options before the model is loaded, so that a mistake is reported at once.
    let flags = args.options.options(args.logprobs);
    flags.check()?;
    let profile = args.profile.read()?;
    let options = with_profile(profile.as_ref(), &flags);
    options.check()?;
    let ModelAndPrompt { model, prompt } = args.model_and_prompt()?;
    let model = model_with_profile(profile.as_ref(), &model)?;
    let prompt = match (&args.prompt_ids, prompt) {
        (Some(_), _) => String::new(),
        (None, Some(prompt)) => input::with_piped(prompt)?,
        (None, None) => input::read_text(args.prompt.as_deref(), args.prompt_file.as_deref(), "--prompt")?,
    };
    let (images, audio) = (input::read_images(&args.image)?, input::read_audio(&args.audio)?);
    let interrupt = Interrupt::install();
    let begin = Instant::now();
    let engine = model.start_chat(&model.engine_options(&args.prefix_cache)?)?;
    let note = model_choice::base_model_note(engine.folder());
    if let Some(note) = note.filter(|_| !args.raw && args.prompt_ids.is_none()) {
        terminal::note_if_terminal(&note);
    }
    let load_seconds = begin.elapsed().as_secs_f64();
    let hashes = FileHashes::of(&images, &audio);
    let parts = images.iter().cloned().map(Part::from).chain(audio.iter().cloned().map(Part::from)).collect();
    let read = read_prompt(&engine, args, (profile.as_ref(), options.think_budget), &prompt, parts);
    let Prompt { tokens, images, audio, parser, is_message } = read.map_err(|error| match error {
        Error::Request { field: "think", .. } => think_error(profile.as_ref(), &args.think, error),
        error => args.media_error(&engine, &images, &audio, error),
    })?;
    let max_tokens = options.max_tokens;
    let recorded = RecordedRequest::new(&engine, &tokens, hashes, is_message, (&options, profile))?;
    let request = engine.request(tokens, &RequestOptions { images, audio, is_message, ..options })?;
    let seed = request.seed();
    let source = if max_tokens == flags.max_tokens { "--max-tokens" } else { "max-tokens of the profile" };
    let stream = ChatStream::new(engine.submit(request)?, parser);
    let answer = answer::read_chat(stream.canceller(), stream, &interrupt, output(args.json))?;
    let failed = matches!(answer.finished.reason, FinishReason::Error(_));
    if args.json {
        let object = to_json(&answer, load_seconds, seed, &recorded);
        terminal::show(&format!("{object}\n"))?;
    } else if !failed || !answer.text.is_empty() {
        terminal::show("\n")?;
    }
    let limit = max_tokens.filter(|limit| answer.tokens.len() >= *limit);
    if let (Some(limit), FinishReason::Length) = (limit, &answer.finished.reason) {
        terminal::note_if_terminal(&format!("(stopped at {limit} tokens: {source})"));
    }
    if let Some(note) = answer.repetition_note("--dry-multiplier 0.8") {
        terminal::note_if_terminal(&note);
    }
    if args.model.verbose {
        terminal::note(&format!("load {load_seconds:.2} s, {}, seed {seed}", answer.timings()));
    }
    answer.failure().map_or(Ok(()), Err)
}

/// The meaning of the arguments without a flag.
struct ModelAndPrompt {
    model: ModelArgs,
    prompt: Option<String>,
}

impl GenerateArgs {
    /// Interprets the arguments. Of two, the first is the model. A single one is the model if it looks like one or a flag gives the prompt.
    fn model_and_prompt(&self) -> Result<ModelAndPrompt, Failure> {
        let (mut model, mut prompt) = (self.model.clone(), self.text.clone());
        let has_flag = self.prompt.is_some() || self.prompt_file.is_some() || self.prompt_ids.is_some();
        let has_model = self.model.name.model.is_some() || self.profile.is_given();
        let is_prompt = |word: &&Path| has_model || !model_choice::looks_like_model(word);
        let only_argument = self.model.name.word().filter(|_| self.text.is_none() && !has_flag);
        if let Some(word) = only_argument.filter(is_prompt) {
            let text = word.to_str().ok_or_else(|| Failure::usage("PROMPT", "is not UTF-8"))?;
            prompt = Some(text.to_owned());
            model.name = model.name.without_positional();
        }
        Ok(ModelAndPrompt { model, prompt })
    }

    /// Returns an error that names the file. The core names only its message.
    fn media_error(&self, engine: &Engine, images: &[Image], audio: &[Audio], error: Error) -> Failure {
        match &error {
            Error::Request { field: "content", .. } => self.image_error(engine, images, error),
            Error::Request { field: "input_audio", message } => match engine.audio_processor() {
                Ok(processor) => {
                    let rejected = |(path, audio): (&PathBuf, &Audio)| {
                        let why = processor.clip(audio, &mut || Ok(())).err()?;
                        Some(Failure::usage("--audio", format!("{} is refused: {why}", path.display())))
                    };
                    self.audio.iter().zip(audio).find_map(rejected).unwrap_or(error.into())
                }
                Err(_) => Failure::usage("--audio", message),
            },
            _ => error.into(),
        }
    }

    fn image_error(&self, engine: &Engine, images: &[Image], error: Error) -> Failure {
        let processor = match engine.image_processor() {
            Ok(processor) => processor,
            Err(why) => return why.into(),
        };
        let rejected = |(path, image): (&PathBuf, &Image)| {
            let why = processor.resized(image).err()?;
            Some(Failure::usage("--image", format!("{} is refused: {why}", path.display())))
        };
        self.image.iter().zip(images).find_map(rejected).unwrap_or(error.into())
    }
}

/// Streams the text; reasoning is folded to one line if the terminal supports it.
fn output(json: bool) -> AnswerOutput {
    if json {
        return AnswerOutput::Hidden;
    }
    let colors = if terminal::has_colors() { Colors::Thoughts } else { Colors::None };
    AnswerOutput::Screen(Box::new(Screen::new(colors, ThoughtView::Folded, terminal::columns())))
}

/// A prompt, and the settings to parse the output with.
struct Prompt {
    tokens: Vec<u32>,
    images: Vec<Pixels>,
    audio: Vec<AudioClip>,
    parser: OutputParser,
    /// True if the model answers a chat; false if it continues a text.
    is_message: bool,
}

/// Builds the prompt. Only a chat has reasoning.
fn read_prompt(
    engine: &Engine,
    args: &GenerateArgs,
    (profile, budget): (Option<&Profile>, Option<usize>),
    prompt: &str,
    media: Vec<Part>,
) -> Result<Prompt> {
    let folder = engine.folder();
    let system = args.system.as_deref().or_else(|| profile?.system.as_deref());
    let is_raw = args.prompt_ids.is_some() || args.raw || (folder.template.is_none() && system.is_none());
    let thinking = thinking_with_profile(profile, &args.think);
    let extra = args.think.variables(thinking, budget, Some(folder).filter(|_| !is_raw))?;
    if is_raw && media.is_empty() {
        let tokens = args.prompt_ids.clone().map_or_else(|| folder.tokenizer.encode(prompt, true), Ok)?;
        let parser = OutputParser::plain();
        return Ok(Prompt { tokens, images: Vec::new(), audio: Vec::new(), parser, is_message: false });
    }
    let system = system.map(Message::system);
    let messages = system.into_iter().chain([Message::user_about(media, prompt)]).collect();
    let input = TemplateInput { messages, extra, add_generation_prompt: true, ..TemplateInput::default() };
    let ChatPrompt { text, tokens, images, audio, .. } =
        chat_prompt_within(engine, &input, None, ContextPolicy::Stop, NO_PAUSE)?;
    let parser = OutputParser::new(&folder.format, &text);
    Ok(Prompt { tokens, images, audio, parser, is_message: true })
}

/// The object that `--json` prints. Scripts rely on it: fields may be added, never changed.
fn to_json(answer: &Answer, load_seconds: f64, seed: u64, recorded: &RecordedRequest) -> Value {
    let finished = &answer.finished;
    let (usage, timings) = (finished.usage, finished.timings);
    let mut object = json!({
        "text": answer.text,
        "tokens": answer.tokens.iter().map(token_to_json).collect::<Vec<_>>(),
        "finish_reason": finished.reason.as_str(),
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        },
        "timings": {
            "load_s": load_seconds,
            "prefill_s": timings.prefill,
            "decode_s": timings.decode,
            "prefill_tps": usage.prefill_rate(&timings),
            "decode_tps": usage.decode_rate(&timings),
            "drafted": usage.drafts.drafted,
            "accepted": usage.drafts.accepted,
        },
        "seed": seed,
        "exactness": finished.exactness.as_str(),
        "request": recorded,
    });
    if !answer.reasoning.is_empty() {
        object["reasoning"] = json!(answer.reasoning);
    }
    object
}

fn token_to_json(token: &TokenOutput) -> Value {
    let mut object = json!({ "id": token.id, "text": token.text });
    if let Some(TokenLogprob { logprob, top }) = &token.logprob {
        object["logprob"] = json!(logprob);
        object["top"] = top_to_json(top);
    }
    object
}

/// Returns the alternatives with their log probabilities as JSON.
pub(crate) fn top_to_json(top: &[(u32, f32)]) -> Value {
    top.iter().map(|&(id, logprob)| json!({ "id": id, "logprob": logprob })).collect()
}
