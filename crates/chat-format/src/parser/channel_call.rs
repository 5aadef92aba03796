//! Parses messages to tools. They contain the arguments of a call, code for a tool that takes code, or calls with their
//! own markers.

use serde_json::Value;

use super::answer::AnswerParser;
use super::called::Call;
use super::escape::escape;
use super::events::Events;
use super::input::{Flow, Input, text};
use super::json_args::JsonArgs;
use crate::format::{AnswerFormat, CallFormat};
use crate::tool::Tools;

/// The argument name for code to an undeclared tool.
const CODE: &str = "code";

/// A message to a tool that is being parsed.
#[derive(Debug, Clone)]
pub(super) enum ChannelCall {
    /// Before the first character, which distinguishes JSON from code.
    New {
        call: Call,
        key: String,
        input: Input,
    },
    Json(Box<JsonCall>),
    /// The message is a single string argument.
    Code {
        space: String,
    },
    Marked(Box<AnswerParser>),
}

#[derive(Debug, Clone)]
pub(super) struct JsonCall {
    call: Call,
    args: JsonArgs,
    input: Input,
    is_whole: bool,
}

impl ChannelCall {
    /// Returns the parser for a call of a function with JSON arguments.
    pub(super) fn function(name: String) -> Self {
        Self::json(Call::named(name), Input::default())
    }

    /// Returns the parser for a call of a tool that may take code.
    pub(super) fn tool(name: String, tools: &Tools) -> Self {
        let parameters = tools.get(&name).and_then(|tool| tool.parameters["properties"].as_object());
        let only = parameters.filter(|parameters| parameters.len() == 1);
        let key = only.and_then(|only| only.keys().next()).map_or(CODE, String::as_str).to_owned();
        Self::New { call: Call::named(name), key, input: Input::default() }
    }

    /// Returns the parser for calls in this format.
    pub(super) fn marked(format: &CallFormat, tools: Tools) -> Self {
        let parser = AnswerParser::new(&AnswerFormat::default(), "").with_calls(format, tools, "");
        Self::Marked(Box::new(parser))
    }

    fn json(call: Call, input: Input) -> Self {
        Self::Json(Box::new(JsonCall { call, args: JsonArgs::new(), input, is_whole: false }))
    }

    /// Parses more of the message. Returns text that is not part of a call.
    pub(super) fn push(&mut self, more: &str, events: &mut Events) -> Option<String> {
        match self {
            Self::New { call, key, input } => {
                input.push(more.as_bytes());
                if input.skip_space()? == b'{' {
                    *self = Self::json(std::mem::take(call), std::mem::take(input));
                    return self.push("", events);
                }
                let start = format!("{{{}:\"", Value::from(key.as_str()));
                let written = text(&input.give_up()) + &text(input.rest());
                call.args(start.as_bytes(), input, events);
                *self = Self::Code { space: String::new() };
                self.push(&written, events)
            }
            Self::Json(json) => {
                json.input.push(more.as_bytes());
                json.read(events)
            }
            Self::Code { space } => {
                let end = more.trim_end().len();
                if end > 0 {
                    let mut written = Vec::new();
                    escape(&std::mem::take(space), &mut written);
                    escape(&more[..end], &mut written);
                    events.args(&written);
                }
                space.push_str(&more[end..]);
                None
            }
            Self::Marked(parser) => {
                parser.push(more.as_bytes(), &AnswerFormat::default(), events);
                None
            }
        }
    }

    /// Ends the message. Returns text that is not part of a call.
    pub(super) fn end(&mut self, is_cut: bool, events: &mut Events) -> Option<String> {
        match self {
            Self::New { input, .. } => Some(text(&input.give_up())),
            Self::Json(json) => {
                json.input.is_ended = true;
                let rest = json.read(events);
                rest.or_else(|| Some(json.give_up(events)))
            }
            Self::Code { .. } => {
                if !is_cut {
                    events.args(b"\"}");
                    events.call_end();
                }
                None
            }
            Self::Marked(parser) => {
                parser.finish(is_cut, &AnswerFormat::default(), events);
                None
            }
        }
    }
}

impl JsonCall {
    /// Parses the arguments that have arrived.
    fn read(&mut self, events: &mut Events) -> Option<String> {
        loop {
            let Self { call, args, input, is_whole } = self;
            if *is_whole {
                // Whitespace may follow.
                input.skip_space()?;
                return Some(self.give_up(events));
            }
            match args.step(input, call, events) {
                Flow::Go => {}
                Flow::Wait => return None,
                Flow::Done if call.is_started => {
                    *is_whole = true;
                    events.call_end();
                    input.commit();
                }
                Flow::Done | Flow::Fail(_) => return Some(self.give_up(events)),
            }
        }
    }

    /// Ends the call and returns the remaining text.
    fn give_up(&mut self, events: &mut Events) -> String {
        if self.call.is_started && !self.is_whole {
            events.call_end();
        }
        let length = self.input.rest().len();
        self.input.advance(length);
        text(&self.input.give_up())
    }
}
