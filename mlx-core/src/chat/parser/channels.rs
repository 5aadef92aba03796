//! Messages on named channels, as gpt-oss writes them: `<|start|>assistant<|channel|>analysis<|message|>…<|end|>`. The
//! header of a message says what its text is: a thought, the answer, or the arguments of a call. A header that is none is
//! text.

use super::called::Call;
use super::events::Events;
use super::input::{Flow, Input, text};
use super::json_args::JsonArgs;
use crate::chat::format::{Channels, Pattern};
use crate::chat::tool::Tools;

/// A longer header is no header.
const LONGEST_HEADER: usize = 256;

/// What stands between two messages of one kind.
const BETWEEN: &str = "\n\n";

/// Where in an answer the parser is.
#[derive(Debug, Clone)]
pub(super) struct ChannelParser {
    input: Input,
    stage: Stage,
    /// Whether there has been a thought, and text of the answer.
    has_reasoning: bool,
    has_text: bool,
    /// Set if calls are read.
    tools: Option<Tools>,
}

#[derive(Debug, Clone)]
enum Stage {
    Header(Header),
    /// The text of a message: a thought or the answer; whether none of it has come.
    Body {
        is_thought: bool,
        is_new: bool,
    },
    /// The arguments of a call.
    Call(Box<ChannelCall>),
    /// After the end of a message.
    Between,
}

#[derive(Debug, Clone, Default)]
struct Header {
    /// All of its text.
    text: String,
    /// The part of it after the channel token.
    channel: Option<String>,
    /// Whether a special token has shown that it is a header.
    is_certain: bool,
    /// After the token that names the form of the content.
    is_constrained: bool,
}

#[derive(Debug, Clone)]
struct ChannelCall {
    call: Call,
    args: JsonArgs,
    input: Input,
    is_whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Start,
    Channel,
    Constrain,
    Message,
    End,
}

impl Header {
    /// The recipient of the message, which may stand anywhere in its header.
    fn recipient(&self) -> Option<&str> {
        let (_, after) = self.text.split_once("to=")?;
        after.split_whitespace().next()
    }

    /// All other channels are for the person, too.
    fn is_thought(&self) -> bool {
        let mut words = self.channel.as_deref().unwrap_or_default().split_whitespace();
        words.next() == Some("analysis") && self.recipient().is_none()
    }

    /// The tool that the message calls, whatever its channel.
    fn called(&self, tools: &Tools) -> Option<String> {
        let recipient = self.recipient()?;
        let name = recipient.strip_prefix("functions.").filter(|name| !name.is_empty());
        name.or_else(|| tools.get(recipient).map(|tool| tool.name.as_str())).map(str::to_owned)
    }
}

impl ChannelParser {
    /// The prompt usually ends with `<|start|>assistant`, the beginning of a header.
    pub(super) fn new(prompt: &str) -> Self {
        let open = prompt.rsplit_once("<|start|>").map_or("", |(_, open)| open);
        let (header, body) =
            open.split_once("<|message|>").map_or((open, None), |(it, body)| (it, Some(body)));
        let channel = header.split_once("<|channel|>").map(|(_, channel)| channel.to_owned());
        // What the prompt holds of the header is no text of the answer.
        let header = Header { is_certain: channel.is_some(), channel, ..Header::default() };
        let stage = match body {
            None => Stage::Header(header),
            Some(body) if body.contains("<|end|>") => Stage::Header(Header::default()),
            Some(_) => Stage::Body { is_thought: header.is_thought(), is_new: true },
        };
        Self { input: Input::default(), stage, has_reasoning: false, has_text: false, tools: None }
    }

    /// Reads calls, too.
    pub(super) fn with_calls(self, tools: Tools) -> Self {
        Self { tools: Some(tools), ..self }
    }

    /// Whether the newest text is a thought, or the header of one.
    pub(super) fn is_thinking(&self) -> bool {
        match &self.stage {
            Stage::Header(header) => header.is_thought(),
            Stage::Body { is_thought, .. } => *is_thought,
            Stage::Call(_) | Stage::Between => false,
        }
    }

    /// Takes more text, with special tokens among it.
    pub(super) fn push(&mut self, bytes: &[u8], channels: &Channels, events: &mut Events) {
        self.input.push(bytes);
        self.run(channels, events);
    }

    pub(super) fn finish(&mut self, channels: &Channels, events: &mut Events) {
        self.input.is_ended = true;
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
                header.text.push_str(text);
                if let Some(channel) = header.channel.as_mut().filter(|_| !header.is_constrained) {
                    channel.push_str(text);
                }
                let is_text = !header.is_certain && header.text.contains('\n');
                if is_text || header.text.len() > LONGEST_HEADER {
                    let text = std::mem::take(&mut header.text);
                    self.body(false, &text, events);
                }
            }
            Stage::Body { is_thought, .. } => {
                let is_thought = *is_thought;
                self.body(is_thought, text, events);
            }
            Stage::Call(call) => {
                call.input.push(text.as_bytes());
                self.arguments(events);
            }
            Stage::Between => self.body(false, text, events),
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
                // A model may leave out the beginning of the header.
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
                }
            }
            Mark::Message => self.begin_body(),
            Mark::End => {
                self.give_up_header(events);
                self.stage = Stage::Between;
            }
        }
    }

    fn begin_body(&mut self) {
        let Stage::Header(header) = &self.stage else { return };
        let called = self.tools.as_ref().and_then(|tools| header.called(tools));
        self.stage = match called {
            Some(name) => Stage::Call(Box::new(ChannelCall {
                call: Call::named(name),
                args: JsonArgs::new(),
                input: Input::default(),
                is_whole: false,
            })),
            None => Stage::Body { is_thought: header.is_thought(), is_new: true },
        };
    }

    /// Reads what is there of a call's arguments.
    fn arguments(&mut self, events: &mut Events) {
        let Stage::Call(reading) = &mut self.stage else { return };
        loop {
            let ChannelCall { call, args, input, is_whole } = &mut **reading;
            if *is_whole {
                // White space may follow.
                if input.skip_space().is_none() {
                    return;
                }
                break;
            }
            match args.step(input, call, events) {
                Flow::Go => {}
                Flow::Wait => return,
                Flow::Done if call.is_started => {
                    *is_whole = true;
                    events.call_end();
                    input.commit();
                }
                Flow::Done | Flow::Fail(_) => break,
            }
        }
        self.give_up_call(events);
    }

    /// What is no call is text.
    fn give_up_call(&mut self, events: &mut Events) {
        let Stage::Call(reading) = &mut self.stage else { return };
        if reading.call.is_started && !reading.is_whole {
            events.call_end();
        }
        let length = reading.input.rest().len();
        reading.input.advance(length);
        let read = text(&reading.input.give_up());
        if !read.as_bytes().trim_ascii().is_empty() {
            tracing::info!(format = "gpt-oss", "what looked like a call is text");
            self.stage = Stage::Body { is_thought: false, is_new: true };
            self.body(false, &read, events);
        }
    }

    fn end_call(&mut self, events: &mut Events) {
        if let Stage::Call(reading) = &mut self.stage {
            reading.input.is_ended = true;
        }
        self.arguments(events);
        self.give_up_call(events);
        if matches!(self.stage, Stage::Call(_)) {
            self.stage = Stage::Between;
        }
    }

    /// What may have been a header was none.
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

fn marks(channels: &Channels) -> Vec<(&Pattern, Mark)> {
    let Channels { start, channel, constrain, message, ends, .. } = channels;
    let ends = ends.iter().map(|end| (end, Mark::End));
    [(start, Mark::Start), (channel, Mark::Channel), (constrain, Mark::Constrain), (message, Mark::Message)]
        .into_iter()
        .chain(ends)
        .collect()
}
