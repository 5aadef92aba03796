//! `mlx compare`: the answers of two models to one prompt, side by side.

mod columns;

use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use chat_format::ChatEvent;
use clap::Args;
use mlx_core::chat::{ChatSession, StreamEvent};
use mlx_core::engine::{EngineOptions, Engines, Event, FinishReason, Finished};
use mlx_options::{DeviceArgs, describe};
use serde_json::{Value, json};

use crate::completion::model_completer;
use crate::exit_code::Failure;
use crate::request_args::RequestArgs;
use crate::{model_choice, terminal};
use columns::{Columns, common_words};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx compare Qwen/Qwen3-0.6B mlx-community/Qwen3-0.6B-4bit 'Why is the sky blue?'
  mlx compare FOLDER_A FOLDER_B 'Write a haiku.' --seed 7 --json

Both models get the same seed. The text after the first difference is colored.";

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The first model, on the left
    #[arg(value_name = "MODEL_A", add = model_completer())]
    left: PathBuf,

    /// The second model, on the right
    #[arg(value_name = "MODEL_B", add = model_completer())]
    right: PathBuf,

    /// The prompt for both models
    #[arg(value_name = "PROMPT")]
    prompt: String,

    /// System prompt for both models
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,

    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    options: RequestArgs,

    /// Print one JSON object instead of columns
    #[arg(long)]
    json: bool,
}

/// An event of one column, with the column's index.
enum Update {
    Text(usize, String),
    Done(usize, Box<Finished>),
}

/// Runs the command.
pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    args.device.choose()?;
    let mut options = args.options.options(None);
    options.check()?;
    options.prompt_progress = false;
    options.sampling.seed.get_or_insert_with(mlx_core::sampling::random_seed);
    let engines = Engines::default();
    let mut sessions = Vec::new();
    for model in [&args.left, &args.right] {
        let folder = model_choice::resolve(model)?;
        model_choice::expect_chat_model(&folder)?;
        let engine = engines.start(&folder, &EngineOptions::single(), terminal::load_bar())?;
        let mut session = ChatSession::new(engine, options.clone());
        session.set_system(args.system.as_deref().unwrap_or_default());
        sessions.push(session);
    }
    let names: Vec<String> = sessions.iter().map(|session| session.engine().folder().name()).collect();
    let width = terminal::columns().filter(|_| !args.json);
    let mut columns = Columns::new([names[0].clone(), names[1].clone()], width, terminal::has_colors());
    terminal::show_styled(&columns.heading())?;
    let ends = thread::scope(|scope| {
        let (sender, updates) = channel();
        for (side, session) in sessions.iter_mut().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || answer(side, session, &args.prompt, &sender));
        }
        drop(sender);
        let mut ends: [Option<Box<Finished>>; 2] = [None, None];
        for update in updates {
            match update {
                Update::Text(side, text) => columns.add(side, &text),
                Update::Done(side, finished) => {
                    columns.end(side);
                    ends[side] = Some(finished);
                }
            }
            terminal::show_styled(&columns.ready())?;
        }
        Ok::<_, Failure>(ends)
    })?;
    let [Some(left), Some(right)] = ends else { return Err(Failure::Reported) };
    let ends = [left, right];
    if args.json {
        let models: Vec<Value> = (0..2).map(|at| to_json(&names[at], columns.text(at), &ends[at])).collect();
        let same = common_words(columns.text(0), columns.text(1));
        terminal::show(&format!(
            "{}\n",
            json!({ "seed": options.sampling.seed, "common_words": same, "answers": models })
        ))?;
    } else {
        terminal::show_styled(&columns.footer(&ends.each_ref().map(|end| stats(end))))?;
    }
    for (name, end) in names.iter().zip(&ends) {
        if let FinishReason::Error(message) = &end.reason {
            terminal::note(&format!("error: {name}: {message}"));
            return Err(Failure::Reported);
        }
    }
    Ok(())
}

/// Streams an answer to its column.
fn answer(side: usize, session: &mut ChatSession, prompt: &str, updates: &Sender<Update>) {
    let events = match session.ask(prompt) {
        Ok(events) => events,
        Err(error) => {
            terminal::note(&format!("error: {}", describe(&error)));
            return;
        }
    };
    for event in events {
        let update = match event {
            StreamEvent::Chat(ChatEvent::Text(text)) => Update::Text(side, text),
            StreamEvent::Engine(Event::Done(finished)) => Update::Done(side, Box::new(finished)),
            _ => continue,
        };
        // The receiver is gone once the output is closed.
        if updates.send(update).is_err() {
            return;
        }
    }
}

fn stats(finished: &Finished) -> String {
    let (usage, timings) = (finished.usage, finished.timings);
    format!("{} tokens, {:.1} tok/s", usage.completion_tokens, usage.decode_rate(&timings))
}

fn to_json(model: &str, text: &str, finished: &Finished) -> Value {
    let (usage, timings) = (finished.usage, finished.timings);
    json!({
        "model": model,
        "text": text,
        "finish_reason": finished.reason.as_str(),
        "completion_tokens": usage.completion_tokens,
        "decode_tps": usage.decode_rate(&timings),
    })
}
