//! Parses an answer with thoughts in tags and tool calls in markers. Whitespace next to a marker is only preserved
//! between two texts of the answer.

use super::called::Context;
use super::events::Events;
use super::held_calls::{DeferredCalls, Verdict};
use super::input::{Flow, Input, Seen, pieces, text};
use super::margin::PendingWhitespace;
use super::marks::{Mark, Marks};
use super::section::SectionReader;
use crate::format::{AnswerFormat, CallFormat, SPECIAL};
use crate::tool::Tools;

/// The separator of two thoughts.
const BETWEEN: &str = "\n\n";

/// The parser's state in an answer, and the text that is not classified yet.
#[derive(Debug, Clone)]
pub(super) struct AnswerParser {
    stage: Stage,
    input: Input,
    /// Whitespace and markers that are only emitted if more text of the answer, or of the thoughts, follows.
    answer: PendingWhitespace,
    thoughts: PendingWhitespace,
    /// True if the text of the answer contains an opening tag.
    mentions_tags: bool,
    calls: Option<(CallFormat, Tools)>,
    /// True if calls were constrained. A call without its section marker is then text, and one in a thought belongs to the thought.
    needs_section: bool,
}

#[derive(Debug, Clone)]
enum Stage {
    /// At the beginning or after a marker, before more text of the answer.
    Start,
    /// After an opening tag, before the text of the thought. The label may still follow.
    Label,
    /// Like `Label`, but after the label.
    ThoughtStart,
    Thought,
    /// Calls in an open thought.
    HeldCalls(Box<DeferredCalls>),
    Answer,
    Section(SectionReader),
}

impl AnswerParser {
    /// Returns a parser of the answer to this prompt, which may end with an opened thought.
    pub(super) fn new(format: &AnswerFormat, prompt: &str) -> Self {
        let is_open = format.thoughts.as_ref().is_some_and(|tags| tags.is_open_in(prompt));
        Self {
            stage: if is_open { Stage::ThoughtStart } else { Stage::Start },
            input: Input::default(),
            answer: PendingWhitespace::default(),
            thoughts: PendingWhitespace::default(),
            mentions_tags: false,
            calls: None,
            needs_section: false,
        }
    }

    /// Also parses calls. The prompt may end with an opened call.
    pub(super) fn with_calls(mut self, calls: &CallFormat, tools: Tools, prompt: &str) -> Self {
        let openers = calls.syntax().openers().filter(|opener| opener.first() != Some(&SPECIAL));
        if let Some(opener) = openers.into_iter().find(|opener| prompt.as_bytes().ends_with(opener)) {
            self.input.push(opener);
        }
        self.calls = Some((calls.clone(), tools));
        self
    }

    /// Treats calls without their section marker as text.
    pub(super) fn expect_sections(&mut self) {
        self.needs_section = true;
    }

    /// Continues an answer that begins in the prompt.
    pub(super) fn continue_answer(&mut self) {
        if matches!(self.stage, Stage::Start) {
            (self.stage, self.answer.has_text) = (Stage::Answer, true);
        }
    }

    pub(super) fn is_thinking(&self) -> bool {
        matches!(self.stage, Stage::Label | Stage::ThoughtStart | Stage::Thought)
    }

    /// Parses more text, with encoded special tokens.
    pub(super) fn push(&mut self, bytes: &[u8], format: &AnswerFormat, events: &mut Events) {
        for piece in pieces(bytes) {
            self.input.push(piece);
            self.run(format, events);
        }
    }

    /// Ends the output. `is_cut` is true unless the model ended it itself.
    pub(super) fn finish(&mut self, is_cut: bool, format: &AnswerFormat, events: &mut Events) {
        (self.input.is_ended, self.input.is_cut) = (true, is_cut);
        self.run(format, events);
        if matches!(&self.stage, Stage::Section(section) if section.is_in_call()) {
            // A truncated call keeps its parsed part.
            self.input.commit();
        }
        while matches!(self.stage, Stage::Section(_)) {
            self.give_up(events);
            self.run(format, events);
        }
        if matches!(self.stage, Stage::Start | Stage::Answer) {
            events.text(&self.answer.last_space());
        }
    }

    fn run(&mut self, format: &AnswerFormat, events: &mut Events) {
        while self.step(format, events) == Flow::Go {}
    }

    fn step(&mut self, format: &AnswerFormat, events: &mut Events) -> Flow {
        match &mut self.stage {
            Stage::Start => self.start(format),
            Stage::Label => self.label(format.thoughts.as_ref().map_or("", |tags| tags.label)),
            Stage::ThoughtStart => self.start_thought(format),
            Stage::Thought => self.thought(format, events),
            Stage::HeldCalls(_) => self.held_calls(format, events),
            Stage::Answer => self.answer(format, events),
            Stage::Section(section) => {
                let Some((calls, tools)) = &self.calls else { return Flow::Wait };
                let context = Context { syntax: calls.syntax(), tools };
                let flow = section.step(&mut self.input, &context, events);
                if section.has_calls() {
                    self.answer.pass_marker();
                }
                match flow {
                    Flow::Done => self.go(Stage::Start),
                    Flow::Fail(reason) => {
                        let format = self.calls.as_ref().map_or("", |(calls, _)| calls.name());
                        tracing::info!(reason, format, "malformed tool call passed through as text");
                        self.give_up(events);
                        Flow::Go
                    }
                    flow => flow,
                }
            }
        }
    }

    fn go(&mut self, stage: Stage) -> Flow {
        self.stage = stage;
        Flow::Go
    }

    fn marks<'a>(&'a self, format: &'a AnswerFormat) -> Marks<'a> {
        Marks {
            format,
            calls: self.calls.as_ref().map(|(calls, _)| calls),
            needs_section: self.needs_section,
        }
    }

    fn skip_space(&mut self) -> Option<u8> {
        let next = self.input.skip_space();
        self.input.commit();
        next
    }

    fn skip(&mut self, bytes: usize) {
        self.input.advance(bytes);
        self.input.commit();
    }

    /// Parses whitespace and thought markers before the next text of the answer.
    fn start(&mut self, format: &AnswerFormat) -> Flow {
        let space = self.input.rest().iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.answer.push_space(&text(&self.input.rest()[..space]));
        self.skip(space);
        if self.input.peek().is_none() {
            return Flow::Wait;
        }
        let Some(tags) = &format.thoughts else { return self.begin_answer() };
        let (open, close) = (&tags.open.pattern, &tags.close.pattern);
        match self.input.sees_any([open, close].into_iter()) {
            (Seen::Maybe, _) => Flow::Wait,
            (Seen::No, _) => self.begin_answer(),
            (Seen::Yes, length) if self.input.sees(open) == Seen::Yes => self.open_thought(length),
            // A closing tag without an open thought.
            (Seen::Yes, length) => {
                self.skip(length);
                self.answer.pass_marker();
                self.go(Stage::Start)
            }
        }
    }

    /// Parses the first character of an answer.
    fn begin_answer(&mut self) -> Flow {
        let only_first = self.calls.as_ref().is_some_and(|(calls, _)| calls.syntax().family.only_first);
        let is_call = only_first && self.input.peek() == Some(b'{');
        self.go(if is_call { Stage::Section(SectionReader::new(false)) } else { Stage::Answer })
    }

    fn open_thought(&mut self, marker: usize) -> Flow {
        self.skip(marker);
        self.answer.pass_marker();
        self.go(Stage::Label)
    }

    fn label(&mut self, label: &str) -> Flow {
        if self.skip_space().is_none() && !label.is_empty() {
            return Flow::Wait;
        }
        match self.input.sees(label.as_bytes()) {
            Seen::Maybe => return Flow::Wait,
            Seen::Yes => self.input.advance(label.len()),
            Seen::No => {}
        }
        self.input.commit();
        self.go(Stage::ThoughtStart)
    }

    fn start_thought(&mut self, format: &AnswerFormat) -> Flow {
        let Some(tags) = &format.thoughts else { return self.go(Stage::Answer) };
        if self.skip_space().is_none() {
            return Flow::Wait;
        }
        match self.input.sees(&tags.open.pattern) {
            Seen::Maybe => return Flow::Wait,
            // The prompt opened the thought, and the model repeats the tag.
            Seen::Yes => {
                self.skip(tags.open.pattern.len());
                return self.go(Stage::Label);
            }
            Seen::No => {}
        }
        self.thoughts.pass_marker();
        self.thoughts.push_space(BETWEEN);
        self.go(Stage::Thought)
    }

    fn thought(&mut self, format: &AnswerFormat, events: &mut Events) -> Flow {
        let (length, hit) = self.marks(format).find_in_thought(&self.input);
        let more = self.take(length);
        events.reasoning(&self.thoughts.text(&more));
        match hit {
            None => Flow::Wait,
            Some((Mark::Close, length)) => {
                self.skip(length);
                self.end_thought()
            }
            Some((mark @ (Mark::Section | Mark::Call), _)) => {
                self.go(Stage::HeldCalls(Box::new(DeferredCalls::new(mark == Mark::Section))))
            }
            Some((_, length)) => {
                let marker = self.take(length);
                self.thoughts.push_end(&marker);
                Flow::Go
            }
        }
    }

    fn end_thought(&mut self) -> Flow {
        self.thoughts.take_space();
        self.answer.pass_marker();
        self.go(Stage::Start)
    }

    fn held_calls(&mut self, format: &AnswerFormat, events: &mut Events) -> Flow {
        let Some((calls, tools)) = &self.calls else { return Flow::Wait };
        let marks = Marks { format, calls: Some(calls), needs_section: self.needs_section };
        let Stage::HeldCalls(held) = &mut self.stage else { return Flow::Wait };
        let context = Context { syntax: calls.syntax(), tools };
        match held.read(&mut self.input, &marks, &context) {
            Verdict::Wait => Flow::Wait,
            Verdict::Calls(calls) => {
                events.append(calls);
                self.input.commit();
                self.end_thought()
            }
            Verdict::Thought => {
                let read = self.given_up();
                events.reasoning(&self.thoughts.text(&read));
                self.go(Stage::Thought)
            }
        }
    }

    fn answer(&mut self, format: &AnswerFormat, events: &mut Events) -> Flow {
        let Some((length, hit)) = self.marks(format).find_in_answer(&self.input) else {
            // Without markers, all text is final, even whitespace.
            let rest = self.take(self.input.rest().len());
            events.text(&self.answer.text(&rest));
            events.text(&self.answer.take_space());
            return Flow::Wait;
        };
        let more = self.take(length);
        events.text(&self.answer.text(&more));
        let Some((mark, length)) = hit else { return Flow::Wait };
        match mark {
            Mark::Open => self.open_thought(length),
            Mark::Silent => {
                self.skip(length);
                self.answer.pass_marker();
                self.go(Stage::Start)
            }
            Mark::Section | Mark::Call => self.go(Stage::Section(SectionReader::new(mark == Mark::Section))),
            Mark::Mention | Mark::Close | Mark::End => {
                let marker = self.take(length);
                self.mentions_tags |= mark == Mark::Mention;
                match mark {
                    Mark::End => self.answer.push_end(&marker),
                    Mark::Close if !self.mentions_tags => self.answer.push_closing_end(&marker),
                    _ => events.text(&self.answer.text(&marker)),
                }
                Flow::Go
            }
        }
    }

    fn take(&mut self, length: usize) -> String {
        let more = text(&self.input.rest()[..length]);
        self.skip(length);
        more
    }

    /// Emits the uncommitted text, which is not a call.
    fn give_up(&mut self, events: &mut Events) {
        let read = self.given_up();
        self.stage = Stage::Answer;
        events.text(&self.answer.text(&read));
    }

    /// Returns the text that was read but not committed, or the next character if there is none.
    fn given_up(&mut self) -> String {
        if self.input.uncommitted() == 0
            && let Some(length) = first_letter(self.input.rest())
        {
            self.input.advance(length);
        }
        text(&self.input.give_up())
    }
}

/// Returns the length of the first character, or of all bytes if it is incomplete.
fn first_letter(bytes: &[u8]) -> Option<usize> {
    let next = bytes.iter().skip(1).position(|byte| byte & 0xc0 != 0x80);
    (!bytes.is_empty()).then(|| next.map_or(bytes.len(), |next| next + 1))
}
