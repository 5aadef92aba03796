//! Parses messages with headers, as in gpt-oss: `<|start|>assistant<|channel|>analysis<|message|>…<|end|>`. The header
//! determines if a message is a thought, the answer or the arguments of a call. Text that only resembles a header is
//! part of the answer.

use super::channel_call::ChannelCall;
use super::events::Events;
use super::header::{Addressed, Header, Mark, marks};
use super::input::{Input, text};
use crate::format::{CallFormat, Channels, Pattern};
use crate::tool::Tools;

/// The separator between two messages of one kind.
const BETWEEN: &str = "\n\n";

/// A parser of messages with headers.
#[derive(Debug, Clone)]
pub(super) struct ChannelParser {
    input: Input,
    stage: Stage,
    /// True after the first thought, and after the first text of the answer.
    has_reasoning: bool,
    has_text: bool,
    /// The call format and tools, if calls are parsed.
    calls: Option<(CallFormat, Tools)>,
}

#[derive(Debug, Clone)]
enum Stage {
    /// At the beginning of a message, or after the end of one.
    Header(Header),
    /// The text of a message: a thought or the answer. `is_new` is true before its first text.
    Body { is_thought: bool, is_new: bool },
    /// A message to a tool.
    Call(Box<ChannelCall>),
}

impl ChannelParser {
    /// Returns a parser of the answer to this prompt. The prompt usually ends with `<|start|>assistant`, the beginning
    /// of a header.
    pub(super) fn new(prompt: &str) -> Self {
        let (header, body) = Header::opened(prompt);
        let stage = match body {
            None => Stage::Header(header),
            Some(body) if body.contains("<|end|>") => Stage::Header(Header::default()),
            Some(_) => {
                Stage::Body { is_thought: header.addressed(false) == Addressed::Thought, is_new: true }
            }
        };
        Self { input: Input::default(), stage, has_reasoning: false, has_text: false, calls: None }
    }

    /// Also parses calls.
    pub(super) fn with_calls(self, calls: &CallFormat, tools: Tools) -> Self {
        Self { calls: Some((calls.clone(), tools)), ..self }
    }

    /// Returns true if the newest text is a thought, or the header of one.
    pub(super) fn is_thinking(&self) -> bool {
        match &self.stage {
            Stage::Header(header) => self.addressed(header) == Addressed::Thought,
            Stage::Body { is_thought, .. } => *is_thought,
            Stage::Call(_) => false,
        }
    }

    /// Returns true within the text of a thought.
    pub(super) fn is_in_thought(&self) -> bool {
        matches!(self.stage, Stage::Body { is_thought: true, .. })
    }

    /// Parses more text, with encoded special tokens.
    pub(super) fn push(&mut self, bytes: &[u8], channels: &Channels, events: &mut Events) {
        self.input.push(bytes);
        self.run(channels, events);
    }

    /// Ends the output. `is_cut` is true if a limit ended it.
    pub(super) fn finish(&mut self, is_cut: bool, channels: &Channels, events: &mut Events) {
        (self.input.is_ended, self.input.is_cut) = (true, is_cut);
        self.run(channels, events);
        self.give_up_header(events);
        self.end_call(events);
    }

    fn run(&mut self, channels: &Channels, events: &mut Events) {
        let marks = marks(channels);
        let patterns: Vec<&Pattern> = marks.iter().map(|(pattern, _)| *pattern).collect();
        loop {
            let (length, hit) = self.input.find(&patterns);
            let more = text(&self.input.rest()[..length]);
            self.input.advance(length + hit.map_or(0, |which| patterns[which].len()));
            self.input.commit();
            if !more.is_empty() {
                self.text(&more, events);
            }
            match hit {
                Some(which) => self.marker(marks[which].1, events),
                None => return,
            }
        }
    }

    fn text(&mut self, text: &str, events: &mut Events) {
        match &mut self.stage {
            Stage::Header(header) => {
                header.push(text);
                if header.is_text() {
                    let text = std::mem::take(&mut header.text);
                    self.body(false, &text, events);
                }
            }
            Stage::Body { is_thought, .. } => {
                let is_thought = *is_thought;
                self.body(is_thought, text, events);
            }
            Stage::Call(call) => {
                let rest = call.push(text, events);
                self.give_up_call(rest, events);
            }
        }
    }

    fn marker(&mut self, mark: Mark, events: &mut Events) {
        if mark != Mark::Constrain {
            self.end_call(events);
        }
        match mark {
            Mark::Start => {
                self.give_up_header(events);
                self.stage = Stage::Header(Header { is_certain: true, ..Header::default() });
            }
            Mark::Channel => {
                // A model may omit the beginning of the header.
                if !matches!(self.stage, Stage::Header(_)) {
                    self.stage = Stage::Header(Header::default());
                }
                if let Stage::Header(header) = &mut self.stage {
                    (header.channel, header.is_certain) = (Some(String::new()), true);
                    header.text.push(' ');
                }
            }
            Mark::Constrain => {
                if let Stage::Header(header) = &mut self.stage {
                    (header.is_certain, header.is_constrained) = (true, true);
                    // A model may omit the space between the recipient and the marker.
                    header.text.push(' ');
                }
            }
            Mark::Message => self.begin_body(events),
            Mark::End => {
                self.give_up_header(events);
                self.stage = Stage::Header(Header::default());
            }
        }
    }

    fn addressed(&self, header: &Header) -> Addressed {
        header.addressed(self.calls.is_some())
    }

    fn begin_body(&mut self, events: &mut Events) {
        let Stage::Header(header) = &self.stage else { return };
        if !header.is_whole() {
            return self.give_up_header(events);
        }
        let addressed = self.addressed(header);
        self.stage = match (addressed, &self.calls) {
            (Addressed::Tool { name, is_function }, Some((format, tools))) => {
                Stage::Call(Box::new(match format.body() {
                    Some(body) => ChannelCall::marked(&body, tools.clone()),
                    None if is_function => ChannelCall::function(name),
                    None => ChannelCall::tool(name, tools),
                }))
            }
            (addressed, _) => Stage::Body { is_thought: addressed == Addressed::Thought, is_new: true },
        };
    }

    /// Emits a malformed call as text.
    fn give_up_call(&mut self, rest: Option<String>, events: &mut Events) {
        let Some(rest) = rest.filter(|rest| !rest.as_bytes().trim_ascii().is_empty()) else { return };
        tracing::info!("malformed tool call passed through as text");
        self.stage = Stage::Body { is_thought: false, is_new: true };
        self.body(false, &rest, events);
    }

    fn end_call(&mut self, events: &mut Events) {
        if let Stage::Call(call) = &mut self.stage {
            let rest = call.end(self.input.is_cut, events);
            self.stage = Stage::Header(Header::default());
            self.give_up_call(rest, events);
        }
    }

    /// Emits text that only resembles a header.
    fn give_up_header(&mut self, events: &mut Events) {
        if let Stage::Header(header) = &mut self.stage
            && !header.is_certain
        {
            let text = std::mem::take(&mut header.text);
            self.body(false, &text, events);
        }
    }

    fn body(&mut self, is_thought: bool, text: &str, events: &mut Events) {
        if text.is_empty() {
            return;
        }
        let is_new = !matches!(self.stage, Stage::Body { is_new: false, .. });
        let has_some = if is_thought { &mut self.has_reasoning } else { &mut self.has_text };
        let between = if is_new && std::mem::replace(has_some, true) { BETWEEN } else { "" };
        self.stage = Stage::Body { is_thought, is_new: false };
        if is_thought {
            events.reasoning(between);
            events.reasoning(text);
        } else {
            events.text(between);
            events.text(text);
        }
    }
}
