//! `mlx generate`: one prompt, one answer.

use std::time::Instant;

use mlx_core::Result;
use mlx_core::engine::{EngineHandle, FinishReason, TokenOutput};
use mlx_core::sampling::TokenLogprob;
use mlx_core::session::{Message, Role, chat_prompt};
use serde_json::{Value, json};

use crate::answer::{self, Answer, Show};
use crate::args::GenerateArgs;
use crate::exit_code::Failure;
use crate::input;
use crate::interrupt::Interrupt;
use crate::terminal;

/// Runs the command.
pub(crate) fn run(args: &GenerateArgs) -> Result<(), Failure> {
    // Read and checked before the model is loaded: a mistake should not cost a minute.
    let options = args.options.options(args.logprobs);
    options.check()?;
    let prompt = match args.prompt_ids {
        Some(_) => String::new(),
        None => input::read_text(args.prompt.as_deref(), args.prompt_file.as_deref(), "--prompt")?,
    };
    let interrupt = Interrupt::install();
    let begin = Instant::now();
    let engine = EngineHandle::start(
        &args.model.folder()?,
        &args.model.engine_options(&args.prefix_cache)?,
        terminal::load_bar(),
    )?;
    let load_seconds = begin.elapsed().as_secs_f64();
    let tokens = prompt_tokens(&engine, args, &prompt)?;
    let request = engine.request(tokens, &options)?;
    let seed = request.seed();
    let show = if args.json { Show::Nothing } else { Show::Plain };
    let answer = answer::read(engine.submit(request)?, &interrupt, show)?;
    let failed = matches!(answer.finished.reason, FinishReason::Error(_));
    if args.json {
        terminal::show(&format!("{}\n", to_json(&answer, load_seconds, seed)))?;
    } else if !failed || !answer.text.is_empty() {
        terminal::show("\n")?;
    }
    if args.model.verbose {
        terminal::note(&format!("load {load_seconds:.2} s, {}, seed {seed}", answer.timings()));
    }
    answer.failure().map_or(Ok(()), Err)
}

fn prompt_tokens(engine: &EngineHandle, args: &GenerateArgs, prompt: &str) -> Result<Vec<u32>> {
    if let Some(ids) = &args.prompt_ids {
        return Ok(ids.clone());
    }
    if args.raw || (engine.folder().template.is_none() && args.system.is_none()) {
        return engine.folder().tokenizer.encode(prompt, true);
    }
    let message = |role, content: &str| Message { role, content: content.to_owned() };
    let system = args.system.iter().map(|text| message(Role::System, text));
    let messages: Vec<Message> = system.chain([message(Role::User, prompt)]).collect();
    chat_prompt(engine, &messages)
}

/// The object that `--json` prints. Scripts rely on it: fields may be added, never changed.
fn to_json(answer: &Answer, load_seconds: f64, seed: u64) -> Value {
    let finished = &answer.finished;
    let (usage, timings) = (finished.usage, finished.timings);
    json!({
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
        },
        "seed": seed,
        "exactness": finished.exactness.as_str(),
    })
}

fn token_to_json(token: &TokenOutput) -> Value {
    let mut object = json!({ "id": token.id, "text": token.text });
    if let Some(TokenLogprob { logprob, top }) = &token.logprob {
        object["logprob"] = json!(logprob);
        object["top"] = top_to_json(top);
    }
    object
}

/// Alternatives with their log-probabilities.
pub(crate) fn top_to_json(top: &[(u32, f32)]) -> Value {
    top.iter().map(|&(id, logprob)| json!({ "id": id, "logprob": logprob })).collect()
}
