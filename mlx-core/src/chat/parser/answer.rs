//! An answer with thoughts between tags and calls of tools between markers. White space around them belongs to no part.

use super::called::Context;
use super::events::Events;
use super::input::{Flow, Input, Seen, text};
use super::section::SectionReader;
use crate::chat::format::{CallFormat, Pattern, SPECIAL, ThoughtTags};
use crate::chat::tool::Tools;

/// Where in an answer the parser is, and the text whose part is not certain yet.
#[derive(Debug, Clone)]
pub(super) struct AnswerParser {
    stage: Stage,
    input: Input,
    /// White space that may stand beside a marker.
    space: String,
    calls: Option<(CallFormat, Tools)>,
    /// A call without the marker of its section is text.
    needs_section: bool,
}

#[derive(Debug, Clone)]
enum Stage {
    /// Only white space has come.
    Start,
    /// A thought was opened, but no letter of it has come; its label may still come.
    Label,
    /// The same after the label.
    ThoughtStart,
    Thought,
    /// A thought or a section of calls was closed, but no letter of the answer has come.
    AnswerStart,
    Answer,
    Section(SectionReader),
}

/// What a marker in an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Thought,
    Section,
    Call,
    Silent,
}

impl AnswerParser {
    /// A parser of the answer to this prompt, whose end may have opened a thought.
    pub(super) fn new(tags: Option<&ThoughtTags>, prompt: &str) -> Self {
        let is_open = tags.is_some_and(|tags| tags.is_open_in(prompt));
        let stage = if is_open { Stage::ThoughtStart } else { Stage::Start };
        Self { stage, input: Input::default(), space: String::new(), calls: None, needs_section: false }
    }

    /// Reads calls, too. The end of the prompt may have opened one.
    pub(super) fn with_calls(mut self, calls: &CallFormat, tools: Tools, prompt: &str) -> Self {
        let openers = calls.syntax().openers().filter(|opener| opener.first() != Some(&SPECIAL));
        if let Some(opener) = openers.into_iter().find(|opener| prompt.as_bytes().ends_with(opener)) {
            self.input.push(opener);
        }
        self.calls = Some((calls.clone(), tools));
        self
    }

    /// Calls without the marker of their section are text.
    pub(super) fn expect_sections(&mut self) {
        self.needs_section = true;
    }

    /// The prompt ends within the answer.
    pub(super) fn continue_answer(&mut self) {
        if matches!(self.stage, Stage::Start) {
            self.stage = Stage::Answer;
        }
    }

    pub(super) fn is_thinking(&self) -> bool {
        matches!(self.stage, Stage::Label | Stage::ThoughtStart | Stage::Thought)
    }

    /// Takes more text, with special tokens among it.
    pub(super) fn push(&mut self, bytes: &[u8], tags: Option<&ThoughtTags>, events: &mut Events) {
        self.input.push(bytes);
        self.run(tags, events);
    }

    /// Takes the end; `is_cut` says that the model has not ended by itself.
    pub(super) fn finish(&mut self, is_cut: bool, tags: Option<&ThoughtTags>, events: &mut Events) {
        (self.input.is_ended, self.input.is_cut) = (true, is_cut);
        self.run(tags, events);
        if matches!(&self.stage, Stage::Section(section) if section.is_in_call()) {
            // A call that is cut keeps what was read of it.
            self.input.commit();
        }
        while matches!(self.stage, Stage::Section(_)) {
            self.give_up(events);
            self.run(tags, events);
        }
        if matches!(self.stage, Stage::Start | Stage::Answer) {
            events.text(&std::mem::take(&mut self.space));
        }
    }

    fn run(&mut self, tags: Option<&ThoughtTags>, events: &mut Events) {
        while self.step(tags, events) == Flow::Go {}
    }

    fn step(&mut self, tags: Option<&ThoughtTags>, events: &mut Events) -> Flow {
        match &mut self.stage {
            Stage::Start => self.start(tags),
            Stage::Label => self.label(tags.map_or("", |tags| tags.label)),
            Stage::ThoughtStart => match self.skip_space() {
                None => Flow::Wait,
                Some(_) => self.go(Stage::Thought),
            },
            Stage::Thought => match tags {
                Some(tags) => self.thought(&tags.close.pattern, events),
                None => self.go(Stage::Answer),
            },
            Stage::AnswerStart => match self.skip_space() {
                None => Flow::Wait,
                Some(_) => self.begin_answer(),
            },
            Stage::Answer => self.answer(tags, events),
            Stage::Section(section) => {
                let Some((calls, tools)) = &self.calls else { return Flow::Wait };
                let context = Context { syntax: calls.syntax(), tools };
                let flow = section.step(&mut self.input, &context, events);
                if section.has_calls() {
                    self.space.clear();
                }
                match flow {
                    Flow::Done => self.go(Stage::AnswerStart),
                    Flow::Fail(reason) => {
                        tracing::info!(reason, format = calls.name(), "what looked like a call is text");
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

    fn skip_space(&mut self) -> Option<u8> {
        let next = self.input.skip_space();
        self.input.commit();
        next
    }

    fn start(&mut self, tags: Option<&ThoughtTags>) -> Flow {
        let space = self.input.rest().iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.space.push_str(&text(&self.input.rest()[..space]));
        self.input.advance(space);
        self.input.commit();
        if self.input.peek().is_none() {
            return Flow::Wait;
        }
        match tags.map_or(Seen::No, |tags| self.input.sees(&tags.open.pattern)) {
            Seen::Yes => self.open_thought(tags),
            Seen::Maybe => Flow::Wait,
            Seen::No => self.begin_answer(),
        }
    }

    /// The first letter of an answer is there.
    fn begin_answer(&mut self) -> Flow {
        let only_first = self.calls.as_ref().is_some_and(|(calls, _)| calls.syntax().family.only_first);
        let is_call = only_first && self.input.peek() == Some(b'{');
        self.go(if is_call { Stage::Section(SectionReader::new(false)) } else { Stage::Answer })
    }

    fn open_thought(&mut self, tags: Option<&ThoughtTags>) -> Flow {
        self.input.advance(tags.map_or(0, |tags| tags.open.pattern.len()));
        self.input.commit();
        self.space.clear();
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

    fn thought(&mut self, close: &Pattern, events: &mut Events) -> Flow {
        let (length, hit) = self.input.find(&[close]);
        let more = self.take(length);
        events.reasoning(&more);
        if hit.is_none() {
            return Flow::Wait;
        }
        self.input.advance(close.len());
        self.input.commit();
        self.space.clear();
        self.go(Stage::AnswerStart)
    }

    fn answer(&mut self, tags: Option<&ThoughtTags>, events: &mut Events) -> Flow {
        let mut marks = marks(self.calls.as_ref().map(|(calls, _)| calls), tags);
        if self.needs_section && marks.iter().any(|(_, mark)| *mark == Mark::Section) {
            marks.retain(|(_, mark)| *mark != Mark::Call);
        }
        let patterns: Vec<&Pattern> = marks.iter().map(|(pattern, _)| *pattern).collect();
        let (length, hit) = self.input.find(&patterns);
        let hit = hit.map(|which| (marks[which].1, patterns[which].len()));
        let is_plain = patterns.is_empty();
        let more = self.take(length);
        events.text(&more);
        if is_plain {
            events.text(&std::mem::take(&mut self.space));
        }
        match hit {
            None => Flow::Wait,
            Some((Mark::Thought, _)) => self.open_thought(tags),
            Some((Mark::Silent, length)) => {
                self.input.advance(length);
                self.input.commit();
                self.space.clear();
                self.go(Stage::AnswerStart)
            }
            Some((mark, _)) => self.go(Stage::Section(SectionReader::new(mark == Mark::Section))),
        }
    }

    /// Reads text; white space at its end waits for what follows.
    fn take(&mut self, length: usize) -> String {
        let more = text(&self.input.rest()[..length]);
        self.input.advance(length);
        self.input.commit();
        self.after_space(&more)
    }

    fn after_space(&mut self, more: &str) -> String {
        let end = more.trim_end().len();
        if end == 0 {
            self.space.push_str(more);
            return String::new();
        }
        let mut certain = std::mem::take(&mut self.space);
        certain.push_str(&more[..end]);
        self.space.push_str(&more[end..]);
        certain
    }

    /// What was read and is no call is text.
    fn give_up(&mut self, events: &mut Events) {
        let mut read = text(&self.input.give_up());
        if read.is_empty()
            && let Some(length) = first_letter(self.input.rest())
        {
            read = text(&self.input.rest()[..length]);
            self.input.advance(length);
            self.input.commit();
        }
        self.stage = Stage::Answer;
        let more = self.after_space(&read);
        events.text(&more);
    }
}

/// The length of the first letter, or of all that is there.
fn first_letter(bytes: &[u8]) -> Option<usize> {
    let next = bytes.iter().skip(1).position(|byte| byte & 0xc0 != 0x80);
    (!bytes.is_empty()).then(|| next.map_or(bytes.len(), |next| next + 1))
}

/// What has a meaning within an answer. A tag that is no special token opens thoughts only at the start, so that an answer may
/// speak about tags.
fn marks<'a>(calls: Option<&'a CallFormat>, tags: Option<&'a ThoughtTags>) -> Vec<(&'a Pattern, Mark)> {
    let mut marks = Vec::new();
    let open = tags.map(|tags| &tags.open.pattern).filter(|open| open.first() == Some(&SPECIAL));
    marks.extend(open.map(|open| (open, Mark::Thought)));
    if let Some(calls) = calls {
        let syntax = calls.syntax();
        let section = syntax.section.as_ref().and_then(|(open, _)| open.first());
        marks.extend(section.map(|open| (open, Mark::Section)));
        marks.extend(syntax.call_opener().map(|open| (open, Mark::Call)));
        marks.extend(syntax.silent.iter().map(|silent| (silent, Mark::Silent)));
    }
    marks
}
