//! Reads one generation to its end and shows reasoning and text as they stream.

use std::time::{Duration, Instant};

use chat_format::{ChatEvent, OutputParser};
use mlx_core::array;
use mlx_core::chat::{ChatStream, StreamEvent};
use mlx_core::engine::{Canceller, Event, FinishReason, Finished, Generation, PromptToken, TokenOutput};
use mlx_files::size;

use crate::chat::Screen;
use crate::exit_code::Failure;
use crate::interrupt::Interrupt;
use crate::terminal;

/// Waits shorter than this are not explained to the user.
const PROGRESS_DELAY: Duration = Duration::from_millis(400);

/// A finished generation.
pub(crate) struct Answer {
    /// The text, without reasoning.
    pub(crate) text: String,
    /// The reasoning.
    pub(crate) reasoning: String,
    /// The tokens of the prompt, if they were scored.
    pub(crate) prompt: Vec<PromptToken>,
    pub(crate) tokens: Vec<TokenOutput>,
    pub(crate) finished: Finished,
}

/// The destination of the streamed text.
pub(crate) enum AnswerOutput {
    Hidden,
    /// To standard output.
    Screen(Box<Screen>),
}

impl AnswerOutput {
    fn add(&mut self, event: &ChatEvent) -> Result<(), Failure> {
        match self {
            Self::Hidden => Ok(()),
            Self::Screen(screen) => {
                screen.resize(terminal::columns());
                terminal::show_styled(&screen.add(event))
            }
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        match self {
            Self::Hidden => Ok(()),
            Self::Screen(screen) => terminal::show_styled(&screen.end()),
        }
    }
}

/// Reads a generation without parsing its text. Ctrl-C ends it; the text so far is returned.
pub(crate) fn read(
    generation: Generation,
    interrupt: &Interrupt,
    output: AnswerOutput,
) -> Result<Answer, Failure> {
    let stream = ChatStream::new(generation, OutputParser::plain());
    read_chat(stream.canceller(), stream, interrupt, output)
}

/// Reads the answer of a chat. Ctrl-C ends it; the text so far is returned.
pub(crate) fn read_chat(
    canceller: Canceller,
    events: impl Iterator<Item = StreamEvent>,
    interrupt: &Interrupt,
    output: AnswerOutput,
) -> Result<Answer, Failure> {
    interrupt.watch(move || canceller.cancel());
    let answer = collect(events, output);
    interrupt.release();
    answer
}

fn collect(events: impl Iterator<Item = StreamEvent>, mut output: AnswerOutput) -> Result<Answer, Failure> {
    let (mut text, mut reasoning) = (String::new(), String::new());
    let (mut prompt, mut tokens, mut last) = (Vec::new(), Vec::new(), None);
    let mut progress = PromptProgress::start();
    for event in events {
        match event {
            StreamEvent::Chat(event) => {
                progress.end();
                output.add(&event)?;
                match event {
                    ChatEvent::Text(more) => text.push_str(&more),
                    ChatEvent::Reasoning(more) => reasoning.push_str(&more),
                    // The session records calls.
                    _ => {}
                }
            }
            StreamEvent::Engine(Event::Prompt(token)) => prompt.push(token),
            StreamEvent::Engine(Event::Token(token)) => tokens.push(token),
            StreamEvent::Engine(Event::Done(finished)) => last = Some(finished),
            StreamEvent::Engine(Event::PromptProgress { read, total, .. }) => progress.show(read, total),
            // No command requests embeddings.
            StreamEvent::Engine(Event::Embedding(_) | Event::Scores(_) | Event::Window(_)) => {}
        }
    }
    progress.end();
    output.end()?;
    let finished = last.expect("the stream of a generation ends with `Done`, also when the engine dies");
    Ok(Answer { text, reasoning, prompt, tokens, finished })
}

/// A progress line for prompts that take long to prefill.
struct PromptProgress {
    start: Instant,
    is_shown: bool,
}

impl PromptProgress {
    fn start() -> Self {
        Self { start: Instant::now(), is_shown: false }
    }

    fn show(&mut self, read: usize, total: usize) {
        if self.start.elapsed() >= PROGRESS_DELAY {
            terminal::status(&format!("reading the prompt, {read} of {total} tokens"));
            self.is_shown = true;
        }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            terminal::status("");
        }
    }
}

impl Answer {
    /// Returns the failure that ended this answer, if any.
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

    /// Returns a note that suggests `remedy` if the answer ended in a loop.
    pub(crate) fn repetition_note(&self, remedy: &str) -> Option<String> {
        let repeated = self.finished.usage.repeated_tokens;
        let note = || format!("(the answer repeats itself for {repeated} tokens; {remedy} may help)");
        (repeated > 0).then(note)
    }

    /// Returns the token count and decode rate on one short line.
    pub(crate) fn status(&self) -> String {
        let Finished { usage, timings, .. } = &self.finished;
        format!("{} tokens, {:.1} tok/s", usage.completion_tokens, usage.decode_rate(timings))
    }

    /// Returns the timings of the prompt and the answer on one line.
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
