//! `mlx chat`: a conversation, typed by a person or read from a pipe.

mod command;
mod input;

use std::ops::Range;
use std::path::Path;

use mlx_core::engine::{EngineHandle, FinishReason, Generation};
use mlx_core::session::{ChatSession, ContextFill, Role};

use crate::answer;
use crate::args::ChatArgs;
use crate::exit_code::Failure;
use crate::interrupt::Interrupt;
use crate::terminal;
use command::{HELP, Line, parse};
use input::{Input, Lines};

/// Runs the command.
pub(crate) fn run(args: &ChatArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::install();
    let engine =
        EngineHandle::start(&args.model.folder()?, &args.model.engine_options()?, terminal::load_bar())?;
    let name = engine.folder().name();
    let session = ChatSession::new(engine, args.options.options(None))?;
    let mut session = session.with_policy(args.context_policy);
    session.set_system(args.system.as_deref().unwrap_or_default());
    let lines = Lines::open();
    if lines.is_interactive() {
        terminal::note(&format!("{name} is ready. /help lists the commands, Ctrl-D leaves."));
    }
    let mut chat = Chat { session, interrupt, verbose: args.model.verbose, failed: false };
    let watched = lines.is_interactive();
    chat.converse(lines)?;
    // A script learns of a failure from the exit code; a person has seen it.
    if chat.failed && !watched { Err(Failure::Reported) } else { Ok(()) }
}

struct Chat {
    session: ChatSession,
    interrupt: Interrupt,
    verbose: bool,
    /// Whether something went wrong on the way.
    failed: bool,
}

impl Chat {
    fn converse(&mut self, mut lines: Lines) -> Result<(), Failure> {
        loop {
            let line = match lines.read()? {
                Input::Text(text) => parse(&text),
                Input::Fenced(text) => Line::Message(text),
                Input::Mistake(message) => Line::Mistake(message),
                Input::Interrupted => continue,
                Input::End => return Ok(()),
            };
            let outcome = match line {
                Line::Quit => return Ok(()),
                line => self.act(line),
            };
            match outcome {
                // After an interruption the chat goes on with what was said before it.
                Ok(()) | Err(Failure::Interrupted) => {}
                Err(Failure::Error(error)) => self.complain(&error.to_string()),
                Err(Failure::Reported) => self.failed = true,
                Err(closed @ Failure::OutputClosed) => return Err(closed),
            }
        }
    }

    fn act(&mut self, line: Line) -> Result<(), Failure> {
        match line {
            Line::Empty | Line::Quit => {}
            Line::Message(text) => {
                let before = self.session.dropped();
                let generation = self.session.ask(&text)?;
                self.note_dropped(&before);
                self.answer(generation)?;
            }
            Line::Retry => {
                let generation = self.session.retry()?;
                self.answer(generation)?;
            }
            Line::Context => self.show_fill()?,
            Line::Help => terminal::note(HELP),
            Line::Clear => {
                self.session.clear();
                terminal::note("the conversation is forgotten");
            }
            Line::System(Some(text)) => self.session.set_system(&text),
            Line::System(None) => self.show_system(),
            Line::Save(file) => {
                self.session.save(Path::new(&file))?;
                terminal::note(&format!("saved to {file}"));
            }
            Line::Load(file) => {
                self.session.load(Path::new(&file))?;
                terminal::note(&format!("{} messages loaded", self.session.messages().len()));
            }
            Line::Mistake(message) => self.complain(&message),
        }
        Ok(())
    }

    fn answer(&mut self, generation: Generation) -> Result<(), Failure> {
        let answer = answer::read(generation, &self.interrupt, true)?;
        terminal::show("\n")?;
        if self.verbose {
            terminal::note(&answer.timings());
        }
        let failure = answer.failure();
        if answer.finished.reason == FinishReason::Length {
            terminal::note("(cut off: the token limit or the end of the context was reached)");
        }
        self.session.answered(answer.text);
        failure.map_or(Ok(()), Err)
    }

    /// Tells what the model has begun not to see.
    fn note_dropped(&self, before: &Range<usize>) {
        let dropped = self.session.dropped();
        if dropped != *before && !dropped.is_empty() {
            let count = dropped.len();
            terminal::note(&format!(
                "(the context is full: the model no longer sees the oldest {count} messages of this conversation)"
            ));
        }
    }

    fn show_fill(&self) -> Result<(), Failure> {
        let ContextFill { used, context, messages, dropped } = self.session.fill()?;
        let unseen = if dropped > 0 { format!(", {dropped} of them no longer seen") } else { String::new() };
        let share = 100 * used / context.max(1);
        terminal::note(&format!("{used} of {context} tokens ({share} %), {messages} messages{unseen}"));
        Ok(())
    }

    fn show_system(&self) {
        let system = self.session.messages().iter().find(|message| message.role == Role::System);
        terminal::note(system.map_or("there is no system prompt", |message| &message.content));
    }

    fn complain(&mut self, message: &str) {
        terminal::note(&format!("error: {message}"));
        self.failed = true;
    }
}
