//! `mlx ask`: the guide answers one question about this program and admits when it is unsure.

#[cfg(test)]
mod answers;

use std::io::{IsTerminal, stdin};

use clap::Args;
use mlx_core::chat::ChatSession;
use mlx_core::engine::{Engine, EngineOptions, Engines, RequestOptions, TokenOutput};
use mlx_guide as guide;
use mlx_options::DeviceArgs;

use crate::answer::{self, AnswerOutput};
use crate::exit_code::Failure;
use crate::input::read_text;
use crate::interrupt::Interrupt;
use crate::note_lines::wrap_note;
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx ask 'how do I save a conversation?'
  mlx ask how much memory does a model need

The guide, a tiny built-in model, answers. It tells you when it is unsure.";

/// Maximum tokens of an answer. The longest answer in the guide's training data has about half of that.
const MAX_TOKENS: usize = 200;

#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    /// The question, in plain English; read from stdin if omitted
    #[arg(value_name = "QUESTION")]
    question: Vec<String>,

    #[command(flatten)]
    device: DeviceArgs,
}

/// Runs the command.
pub(crate) fn run(args: &AskArgs) -> Result<(), Failure> {
    args.device.choose()?;
    let missing =
        || Failure::usage("QUESTION", "is missing; ask as in: mlx ask 'how do I save a conversation?'");
    if args.question.is_empty() && stdin().is_terminal() {
        return Err(missing());
    }
    let given = (!args.question.is_empty()).then(|| args.question.join(" "));
    let question = read_text(given.as_deref(), None, "QUESTION")?;
    if question.trim().is_empty() {
        return Err(missing());
    }
    let reply = ask(&Engines::default(), &question, &Interrupt::install())?;
    let reply = terminal::columns().map_or(reply.clone(), |columns| wrap_note(&reply, columns - 1));
    terminal::show(&format!("{reply}\n"))
}

/// Returns the guide's answer to a standalone question. Instead of an answer that is probably wrong, it names the nearest known questions and
/// answers the first. Reuses the guide if `engines` runs it.
pub(crate) fn ask(engines: &Engines, question: &str, interrupt: &Interrupt) -> Result<String, Failure> {
    let engine = engines.start(&guide::folder()?, &EngineOptions::single(), |_, _| {})?;
    let asked = question.trim();
    let (answer, tokens) = answer_to(&engine, asked, interrupt)?;
    if !is_doubtful(&tokens) {
        return Ok(answer);
    }
    let near = guide::nearest(asked, 2);
    let Some(first) = near.first() else { return Ok(note_about(&near)) };
    let (answer, _) = answer_to(&engine, first, interrupt)?;
    Ok(format!("{}\n\nThe answer to the first: {answer}", note_about(&near)))
}

/// Returns the answer of a new chat, and its tokens.
fn answer_to(
    engine: &Engine,
    question: &str,
    interrupt: &Interrupt,
) -> Result<(String, Vec<TokenOutput>), Failure> {
    let options =
        RequestOptions { max_tokens: Some(MAX_TOKENS), logprobs: Some(0), ..RequestOptions::default() };
    let mut session = ChatSession::new(engine.clone(), options);
    let answer = session.ask(question)?;
    let answer = answer::read_chat(answer.canceller(), answer, interrupt, AnswerOutput::Hidden)?;
    match answer.failure() {
        Some(failure) => Err(failure),
        None => Ok((answer.text, answer.tokens)),
    }
}

/// Returns a note for an answer of the guide that is probably wrong. It lists the two nearest questions that the guide knows.
pub(crate) fn doubt_note(question: &str, tokens: &[TokenOutput]) -> Option<String> {
    is_doubtful(tokens).then(|| note_about(&guide::nearest(question, 2)))
}

fn is_doubtful(tokens: &[TokenOutput]) -> bool {
    guide::is_uncertain(tokens.iter().filter_map(|token| token.logprob.as_ref()).map(|it| it.logprob))
}

/// Returns the note for a question with these nearest known questions.
fn note_about(near: &[&str]) -> String {
    if near.is_empty() {
        return "I am not sure. I know only `mlx`; `mlx --help` lists its commands.".to_owned();
    }
    format!("I am not sure. Questions near yours that I know:\n  {}", near.join("\n  "))
}
