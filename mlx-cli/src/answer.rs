//! Reads one generation to its end, showing the text as it comes.

use mlx_core::engine::{Event, FinishReason, Finished, Generation, PromptToken, TokenOutput};
use mlx_core::{array, size};

use crate::chat::Painter;
use crate::exit_code::Failure;
use crate::interrupt::Interrupt;
use crate::terminal;

/// A generation that has ended.
pub(crate) struct Answer {
    pub(crate) text: String,
    /// The tokens of the prompt, if they were scored.
    pub(crate) prompt: Vec<PromptToken>,
    pub(crate) tokens: Vec<TokenOutput>,
    pub(crate) finished: Finished,
}

/// What becomes of the text while it comes.
pub(crate) enum Show {
    Nothing,
    /// It goes to the terminal as it becomes certain.
    Plain,
    /// The same in color.
    Painted(Box<Painter>),
}

impl Show {
    fn add(&mut self, delta: &str) -> Result<(), Failure> {
        match self {
            Self::Plain if !delta.is_empty() => terminal::show(delta),
            Self::Painted(painter) if !delta.is_empty() => terminal::show(&painter.paint(delta)),
            _ => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        if let Self::Painted(painter) = self { terminal::show(&painter.finish()) } else { Ok(()) }
    }
}

/// Reads `generation` to its end. Ctrl-C ends the generation; what came before it is kept.
pub(crate) fn read(generation: Generation, interrupt: &Interrupt, show: Show) -> Result<Answer, Failure> {
    interrupt.watch(generation.canceller());
    let answer = collect(generation, show);
    interrupt.release();
    answer
}

fn collect(generation: Generation, mut show: Show) -> Result<Answer, Failure> {
    let (mut text, mut prompt, mut tokens) = (String::new(), Vec::new(), Vec::new());
    let finished = generation.finish(|event| {
        match event {
            Event::Prompt(token) => prompt.push(token),
            Event::Token(token) => {
                text.push_str(&token.delta);
                show.add(&token.delta)?;
                tokens.push(token);
            }
            // No command asks for one; and the end is given apart.
            Event::Embedding(_) | Event::Done(_) => {}
        }
        Ok::<(), Failure>(())
    })?;
    text.push_str(&finished.delta);
    show.add(&finished.delta)?;
    show.end()?;
    Ok(Answer { text, prompt, tokens, finished })
}

impl Answer {
    /// The failure that this answer ended with, if it did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match &self.finished.reason {
            FinishReason::Cancelled => Some(Failure::Interrupted),
            FinishReason::Error(message) => {
                terminal::note(&format!("error: {message}"));
                Some(Failure::Reported)
            }
            _ => None,
        }
    }

    /// One short line of figures.
    pub(crate) fn status(&self) -> String {
        let Finished { usage, timings, .. } = &self.finished;
        format!("{} tokens, {:.1} tok/s", usage.completion_tokens, usage.decode_rate(timings))
    }

    /// One line of figures.
    pub(crate) fn timings(&self) -> String {
        let Finished { usage, timings, reason, exactness, .. } = &self.finished;
        let peak = size(array::peak_memory().unwrap_or_default() as u64);
        format!(
            "prompt {} tokens at {:.1} tok/s, answer {} tokens at {:.1} tok/s, ended by {}, {}, peak memory {peak}",
            usage.prompt_tokens,
            usage.prefill_rate(timings),
            usage.completion_tokens,
            usage.decode_rate(timings),
            reason.as_str(),
            exactness.as_str(),
        )
    }
}
